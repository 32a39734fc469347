"""What runs in the soak's namespace: small workloads whose containers write down what happens to them."""

import secrets
from typing import Any

from crrd.core.api import types as model
from crrd.core.policy.types import API_VERSION, KIND
from tests.soak_cluster.collect import LABEL_WORKLOAD
from tests.soak_cluster.observe import TERMINATION_LOG

Json = dict[str, Any]
APP, SIDE = "app", "side"
CONFIG = "cfg"
POLICY_TARGET = "web"
KINDS = {"web": ("Deployment", 3), "db": ("StatefulSet", 2), "api": ("Deployment", 2)}
"""Name of a workload -> its kind and its replicas."""
MOST_UNREADY = dict.fromkeys(KINDS, 1)
GRACE_SECONDS = 8

_SAY = f"""\
while read -r _ _ _ root at _; do [ "$at" = {TERMINATION_LOG} ] && me=${{root##*/}}; done < /proc/self/mountinfo
say() {{ read -r now _ < /proc/uptime; echo "$now $me $*" >> "/soak/$POD_UID.$NAME.log"; }}
"""
# `sleep & wait`, because a shell runs its trap only after a command in the foreground has ended
_MAIN = """\
trap 'say term; sleep 0.5; say end; exit 0' TERM
say start $VALUE
while :; do
  if [ -e "/soak/$POD_UID.$NAME.crash" ]; then rm "/soak/$POD_UID.$NAME.crash"; say crash; exit 1; fi
  sleep 1 & wait $!
done
"""
_HOOK = "say hook; sleep 1; say hooked"


def crash_file(pod_uid: str, container: str) -> str:
    """Return the name of the file that makes a container crash. The container removes it first."""
    return f"{pod_uid}.{container}.crash"


def workload(name: str, node: str, image: str, folder: str) -> Json:
    """Return a workload with two containers. The first one has a hook and uses the ConfigMap."""
    kind, replicas = KINDS[name]
    labels = {LABEL_WORKLOAD: name}
    value = {"name": "VALUE", "valueFrom": {"configMapKeyRef": {"name": CONFIG, "key": "value"}}}
    hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", _SAY + _HOOK]}}}
    spec: Json = {
        "nodeName": node,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "readinessGates": [{"conditionType": model.READINESS_GATE}],
        "containers": [
            _container(APP, image, lifecycle=hook, env=[value]),
            _container(SIDE, image),
        ],
        "volumes": [{"name": "soak", "hostPath": {"path": folder, "type": "Directory"}}],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    of_kind: Json = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    if kind == "StatefulSet":
        of_kind["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": of_kind}


def _container(name: str, image: str, env: list[Json] | None = None, **fields: Any) -> Json:
    uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _SAY + _MAIN],
        "env": [uid, {"name": "NAME", "value": name}, *(env or [])],
        "volumeMounts": [{"name": "soak", "mountPath": "/soak"}],
        **fields,
    }


def config_map(value: str) -> Json:
    """Return the ConfigMap that the workloads use."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG}, "data": {"value": value}}


def policy() -> Json:
    """Return the policy that brings the ConfigMap's data to one of the workloads."""
    spec = {
        "targetRef": {"apiVersion": "apps/v1", "kind": KINDS[POLICY_TARGET][0], "name": POLICY_TARGET},
        "triggers": {"configChange": {"settle": "2s"}},
        "budget": {"maxUnavailable": MOST_UNREADY[POLICY_TARGET]},
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": POLICY_TARGET}, "spec": spec}


def request(pod: str, containers: list[str], number: int) -> Json:
    """Return a request for containers of a pod, with a strategy that the number selects."""
    strategy: Json = {}
    if number & 1:
        strategy["unreadyGracePeriodSeconds"] = 2
    if number & 2:
        strategy["orderedRecreate"] = True
    if number & 12 == 0:
        strategy["forceRecreate"] = True
    if number & 48 == 0:
        strategy["failurePolicy"] = "Ignore"
    if number & 192 == 0:
        strategy["terminationGracePeriodSeconds"] = 4
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {"name": f"{pod}-{secrets.token_hex(3)}"},
        "spec": {
            "podName": pod,
            "containers": [{"name": name} for name in containers],
            "strategy": strategy,
            "activeDeadlineSeconds": 60 + number % 120,
            "ttlSecondsAfterFinished": number % 60,
        },
    }
