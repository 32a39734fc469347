"""The manifests as rendered by `kubectl kustomize`."""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here to render manifests")

Json = dict[str, Any]


@cache
def rendered(folder: str, namespace: str = "") -> list[Json]:
    """Return the objects of a folder below manifests. With `namespace`, those of an overlay with that namespace."""
    if not namespace:
        return _render(MANIFESTS / folder)
    with tempfile.TemporaryDirectory() as overlay:
        resource = os.path.relpath(MANIFESTS / folder, os.path.realpath(overlay))
        text = yaml.safe_dump({"resources": [resource], "namespace": namespace})
        (Path(overlay) / "kustomization.yaml").write_text(text, encoding="utf-8")
        return _render(Path(overlay))


def _render(folder: Path) -> list[Json]:
    result = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return parsed(result.stdout)


def parsed(text: str) -> list[Json]:
    """Return the objects of a YAML file. The C parser, where there is one, is ten times as fast."""
    return [found for found in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if found]


def one(objects: list[Json], kind: str, name: str) -> Json:
    """Return the object of this kind and name."""
    return next(each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
