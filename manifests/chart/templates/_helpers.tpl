{{- define "crrd.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Those of all charts of a parent, as names or as objects, and those of this chart. */}}
{{- define "crrd.imagePullSecrets" -}}
{{- $names := list }}
{{- range concat ((.Values.global | default dict).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) }}
{{- if kindIs "string" . }}{{ $names = append $names . }}{{ else }}{{ $names = append $names .name }}{{ end }}
{{- end }}
{{- range uniq $names }}
- name: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* Of an app's name and its constraints. A constraint without a selector would count no pods. */}}
{{- define "crrd.spread" -}}
{{- $selector := dict "matchLabels" (dict "app" (first .)) }}
{{- range last . }}
- {{- toYaml (hasKey . "labelSelector" | ternary . (set (deepCopy .) "labelSelector" $selector)) | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Of a namespace's name. With --take-ownership, Helm would make any namespace that exists part of the release. */}}
{{- define "crrd.checkNamespace" -}}
{{- $labels := dig "metadata" "labels" dict (lookup "v1" "Namespace" "" .) }}
{{- if and (lookup "v1" "Namespace" "" .) (ne (get $labels "app.kubernetes.io/name") "crrd") }}
{{- printf "namespace %s exists and is not crrd's: choose another name, or set namespaces.create=false to install into it" . | fail }}
{{- end }}
{{- end }}
