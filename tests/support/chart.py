"""The Helm chart, rendered by Helm's own library."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import MANIFESTS, parsed

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")
CHART = MANIFESTS / "chart"
Json = dict[str, Any]


def templated(values: Json | None = None, namespace: str = "default", chart: Path = CHART) -> list[Json]:
    """Return the objects of the chart, or of another one. Raises HelmError for values that are refused."""
    with helm.Chart.load(chart) as loaded:
        texts = loaded.render(values or {}, name="crrd", namespace=namespace)
    return [found for name, text in texts.items() if name.endswith(".yaml") for found in parsed(text)]
