"""`crrd demo` where it cannot succeed: it says why, ends with 1 and leaves nothing behind."""

from collections.abc import Iterator

import pytest
import structlog

from daemon.localnode import demo
from daemon.localnode.containers.images import MISSING


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_an_image_that_nobody_has(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "PATIENCE_SECONDS", 3.0)
    assert demo.run_demo(cri_endpoints=[], image=f"{MISSING}:1", keep=False) == 1
    said = capsys.readouterr().out
    assert f"image '{MISSING}:1' not found" in said
    assert said.splitlines()[-1].endswith("not there after 3 s; giving up")
    assert "crictl" not in said  # advice for a real runtime only
