"""How long a forecast for 10 000 containers takes, and how much memory: `python -m tests.bench.forecast`.

Every container is another one (names, images, variables), as large as those of real charts, and its hash is computed
for the running version and for the one to come. Fails beyond 5 s of CPU or 150 MiB.
"""

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

from crrd_forecast.hash.container_hash import container_hash
from crrd_forecast.render import summary
from crrd_forecast.report import ForecastInput, make_report

MOST_SECONDS = 5.0
MOST_MIB = 150.0
TODAY, TO = "v1.30.4", "1.31"


def container(number: int) -> dict[str, Any]:
    probe = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
    mount = "/var/run/secrets/kubernetes.io/serviceaccount"
    return {
        "name": f"app-{number}",
        "image": f"team-{number % 97}/service-{number}:v1.{number % 50}.0",
        "args": ["--listen=:8080", f"--shard={number}"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"VARIABLE_{n}", "value": f"value-{n}-{number}"} for n in range(6)],
        "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [{"name": f"kube-api-access-{number % 32}", "readOnly": True, "mountPath": mount}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}, **probe},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http", "scheme": "HTTP"}, **probe},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def inputs(count: int, stored: str) -> Iterator[ForecastInput]:
    for number in range(count):
        yield ForecastInput("default", f"pod-{number}", f"app-{number}", f"{number:064x}", stored, container(number))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--containers", type=int, default=10_000)
    count = parser.parse_args().containers
    stored = f"{container_hash(container(0), TODAY) or 0:x}"
    began, cpu = time.perf_counter(), time.process_time()
    report = make_report(inputs(count, stored), TODAY, TO)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"forecast: {count} containers in {seconds:.2f} s ({cpu:.2f} s of CPU): {summary(report)}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"forecast: {peak:.0f} MiB at most (limits: {MOST_SECONDS:g} s, {MOST_MIB:g} MiB)")
    return int(cpu > MOST_SECONDS or peak > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
