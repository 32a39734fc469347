"""What every node pays for: neither speaking to the API server nor the whole daemon may bring in the big packages."""

import json
import pkgutil
import subprocess
import sys

import crrd.kube

HEAVY = {"kubernetes", "requests", "yaml", "urllib3", "grpc", "google", "pydantic", "cryptography"}


def test_kube_imports_no_heavy_package() -> None:
    names = [module.name for module in pkgutil.walk_packages(crrd.kube.__path__, "crrd.kube.")]
    assert "crrd.kube.access.kubeconfig" in names
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout
    loaded = set(json.loads(out))
    assert "aiohttp" in loaded
    assert loaded & HEAVY == set()


def test_a_command_imports_no_more_than_it_needs() -> None:
    """A table imports rich later, so that must be possible. Some installations of Python have no ctypes."""
    code = (
        "import json, sys\n"
        "sys.modules['_ctypes'] = None\n"
        "from crrd.cli.main import module_of\n"
        "module_of('recreate')\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
        "import crrd.rollout.table"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout
    loaded = set(json.loads(out))
    assert {"aiohttp", "structlog"} <= loaded
    assert loaded & ((HEAVY - {"yaml"}) | {"rich", "prometheus_client", "crrd_forecast", "crrd_localnode"}) == set()


FOREIGN_TO_NODES = {"manager", "cli"}
"""Rooms of other commands."""
FOR_OTHER_SERVERS = {"twisted", "django", "bridge", "multiprocess"}
"""Modules of prometheus_client that the page does without."""


def test_the_whole_daemon_imports_no_more_than_it_needs() -> None:
    code = (
        "import json, sys\n"
        "from crrd.lib.imports import keep_imports_lean\n"
        "with keep_imports_lean():\n"
        "    from crrd.node.daemon import run_node\n"
        "print(json.dumps([name for name, module in sys.modules.items() if module is not None]))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout
    names = set(json.loads(out))
    assert {"crrd.node.metrics", "prometheus_client.exposition", "grpc.aio"} <= names
    heavy = (HEAVY - {"grpc", "google"}) | {"rich", "oauthlib", "twisted", "django", "crrd_forecast", "crrd_localnode"}
    assert {name.partition(".")[0] for name in names} & heavy == set()
    assert {name for name in names if name.startswith("crrd.") and name.split(".")[1] in FOREIGN_TO_NODES} == set()
    assert names & {f"prometheus_client.{name}" for name in FOR_OTHER_SERVERS} == set()
