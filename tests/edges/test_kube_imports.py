"""What every node pays for: speaking to the API server must not bring in the big packages."""

import json
import pkgutil
import subprocess
import sys

import daemon.kube

HEAVY = {"kubernetes", "requests", "yaml", "urllib3", "grpc", "google", "pydantic", "cryptography"}


def test_kube_imports_no_heavy_package() -> None:
    names = [module.name for module in pkgutil.iter_modules(daemon.kube.__path__, "daemon.kube.")]
    assert "daemon.kube.kubeconfig" in names
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout
    loaded = set(json.loads(out))
    assert "aiohttp" in loaded
    assert loaded & HEAVY == set()
