#!/bin/sh
# Takes crrd out of a cluster, whatever is active: requests first, then what was installed, the CRD with it.
#   sh manifests/uninstall.sh -k manifests/default      what you installed with: -k FOLDER or -f install.yaml
#   sh manifests/uninstall.sh                           only ends all requests and releases their pods
# Both take kubectl's flags that select the cluster, such as --context and --kubeconfig.
# It also mends an uninstall that hangs, because the manager went before it had released what it held: run it again.
# Needs kubectl, and the rights that installing needs; nothing of crrd has to run.
set -eu

refuse() {
  echo "$1. Usage: sh uninstall.sh [-k FOLDER | -f FILE] [--context NAME and other connection flags of kubectl]" >&2
  exit 2
}
quoted() {
  case "$1" in
    '' | *[!A-Za-z0-9_./:=@,-]*) printf " '%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf ' %s' "$1" ;;
  esac
}

# INSTALLED is for `kubectl delete`. CONNECTION is for every call: one without it would go to another cluster. Both are
# quoted words. Any other flag is refused, because it would change what the calls below do (-n, -l).
INSTALLED='' CONNECTION='' SHOWN=''
while test $# -gt 0; do
  name=${1%%=*} list=CONNECTION
  case "$name" in
    -[fk]* | --filename | --kustomize | -R | --recursive) list=INSTALLED ;;
    -s* | --server | --context | --cluster | --user | --kubeconfig | --token | --as | --as-group | --as-uid) ;;
    --insecure-skip-tls-verify | --tls-server-name | --certificate-authority | --client-certificate | --client-key) ;;
    --request-timeout | --cache-dir | --disable-compression) ;;
    *) refuse "$1 is not supported" ;;
  esac
  words=$(quoted "$1")
  case "$1" in
    --*=* | -[fks]?* | -R | --recursive | --insecure-skip-tls-verify | --disable-compression) ;;
    *) test $# -gt 1 || refuse "$1 needs a value"
      shift
      words="$words$(quoted "$1")" ;;
  esac
  shift
  case "$list$name" in INSTALLED* | CONNECTION--token) ;; *) SHOWN="$SHOWN$words" ;; esac
  eval "$list=\"\$$list\$words\""
done
kubectl() { eval "command kubectl \"\$@\"$CONNECTION"; }

where=$(kubectl config view --minify -o jsonpath='context {.current-context}, {.clusters[0].cluster.server}' 2>&1) ||
  where="kubectl's default"
echo "cluster: $where$SHOWN"

RESOURCE=containerrecreaterequests.apps.kruise.io
FINALIZER=crr.apps.kruise.io/unready-acquired
TAB=$(printf '\t')
# An entry of ours in the message, for sed. Each goes with a comma beside it: other commas belong to entries of others.
AGENT='\\"userAgent\\": *\\"ContainerRecreateRequest\\"'
ENTRY="{ *$AGENT, *"'\\"key\\": *\\"[^"\]*\\" *}'
# namespace, name, version and readiness condition of all pods. The condition is JSON, on one line whatever its message
# holds: anybody who may write a pod's status wrote that message, and it must not become a line of its own.
PODS='{range .items[*]}{.metadata.namespace}{"\t"}{.metadata.name}{"\t"}{.metadata.resourceVersion}{"\t"}'\
'{.status.conditions[?(@.type=="KruisePodReady")]}{"\n"}{end}'
# namespace, name, version and finalizers of all requests.
REQUESTS='{{range .items}}{{with .metadata}}{{.namespace}}{{"\t"}}{{.name}}{{"\t"}}{{.resourceVersion}}{{"\t"}}'\
'{{range .finalizers}}"{{.}}",{{end}}{{"\n"}}{{end}}{{end}}'

# Whoever may not look, or gets no answer, has not found out: then this script ends here, with kubectl's error.
kruise=$(kubectl get mutatingwebhookconfiguration kruise-mutating-webhook-configuration --ignore-not-found -o name)
if test -n "$kruise"; then
  echo "OpenKruise is installed, and its manager needs the requests and the CRD. This script deletes nothing." >&2
  echo "To uninstall crrd: kubectl delete -k manifests/overlays/beside-openkruise$SHOWN" >&2
  exit 2
fi

# Where kubectl cannot tell, the script ends: "not defined" would mean that all requests are deleted.
defined() {
  definition=$(kubectl get crd "$RESOURCE" --ignore-not-found -o name) || exit 1
  test -n "$definition"
}

# Pods that a request holds unready; "" where there are none.
held_pods() {
  all=$(kubectl get pods -A -o jsonpath="$PODS")
  printf '%s\n' "$all" | grep "$AGENT" || :
}

# kubectl, while the CRD is defined. It may go between two questions. Then an error is no error and is not shown.
while_defined() {
  if defined; then kubectl "$@" 2>/dev/null || ! defined || kubectl "$@"; fi
}

requests() {
  while_defined get "$RESOURCE" -A -o go-template="$REQUESTS"
}

# Takes the requests from the reasons to be unready; those of others stay. Bound to the version that was read: what has
# changed since is refused, and read again in the next round.
release_pods() {
  while IFS="$TAB" read -r namespace name version condition; do
    test -n "$name" || continue
    rest=$(printf '%s' "$condition" | sed -e "s/, *$ENTRY//g" -e "s/$ENTRY, *//g" -e "s/$ENTRY//g")
    case "$rest" in *'"message":"[]"'*)
      rest=$(printf '%s' "$rest" | sed -e 's/"message":"\[\]"/"message":""/' -e 's/"status":"False"/"status":"True"/') ;;
    esac
    echo "pod $namespace/$name: removing crrd's entries from the condition KruisePodReady"
    kubectl patch pod -n "$namespace" "$name" --subresource=status -o name \
      -p "{\"metadata\":{\"resourceVersion\":\"$version\"},\"status\":{\"conditions\":[$rest]}}" >/dev/null || :
  done
}

release_requests() {
  while IFS="$TAB" read -r namespace name version finalizers; do
    test -n "$name" || continue
    case "$finalizers" in *"\"$FINALIZER\","*) ;; *) continue ;; esac
    rest=$(printf '%s' "$finalizers" | sed -e "s|\"$FINALIZER\",||" -e 's/,$//')
    echo "removing the finalizer of request $namespace/$name"
    kubectl patch "$RESOURCE" -n "$namespace" "$name" --type=merge -o name \
      -p "{\"metadata\":{\"resourceVersion\":\"$version\",\"finalizers\":[$rest]}}" >/dev/null || :
  done
}

while_defined delete "$RESOURCE" --all -A --wait=false
# A manager that runs releases better than this script: it knows who else holds a pod.
tries=0
while test "$tries" -lt 30 && test -n "$(requests)" && test -n "$(kubectl get pods -A -l app=crrd-manager -o name)"; do
  sleep 1
  tries=$((tries + 1))
done
if test -n "$INSTALLED"; then eval "kubectl delete --ignore-not-found --wait=false $INSTALLED"; fi

tries=0
while test "$tries" -lt 60; do
  # Requests go while their pods are still told apart from pods that others hold: first pods, then finalizers.
  held=$(held_pods)
  found=$(requests)
  if test -z "$held" && test -z "$found"; then
    if test -z "$INSTALLED" || ! defined; then
      if test -n "$INSTALLED"; then
        echo "waiting until the namespaces are gone: nothing can be installed again before"
        if ! eval "kubectl delete --ignore-not-found --timeout=60s $INSTALLED" >/dev/null 2>&1; then
          echo "some of what was installed is still being deleted: look at kubectl get namespaces before you install again"
        fi
      fi
      echo "done: all requests are deleted, and no pod is kept unready"
      exit 0
    fi
  fi
  release_pods <<EOF
$held
EOF
  release_requests <<EOF
$found
EOF
  tries=$((tries + 1))
  sleep 1
done
echo "not finished: check your rights and run the script again. Pods that crrd keeps unready, and requests that exist:" >&2
printf '%s\n' "$(held_pods)" "$(requests)" >&2
exit 1
