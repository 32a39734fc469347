"""What the observer reads from files: each line once, and only whole ones."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from crrd.core.api.types import PLURAL
from tests.soak_cluster.collect import Collector
from tests.soak_cluster.observe import Observer
from tests.soak_cluster.record import Instance, Word
from tests.support.cluster import Cluster


def created(name: str, *, code: int = 201, namespace: str = "soak", uri: str = "/x", verb: str = "create") -> str:
    about: dict[str, Any] = {"resource": PLURAL, "namespace": namespace, "name": name}
    event = {"verb": verb, "objectRef": about, "responseStatus": {"code": code}, "requestURI": uri}
    return json.dumps(event) + "\n"


def test_each_line_of_a_container_is_read_once(tmp_path: Path) -> None:
    collector = Collector({}, frozenset(), "app")
    observer = Observer(cast("Cluster", SimpleNamespace(namespace="soak")), collector, tmp_path, None)
    collector.seen(Instance("a-1", "u-1", "app", 0.0), "k1")
    file = tmp_path / "u-1.app.log"
    file.write_text("5.0 k1 start v0\n6.5 k1 te")
    observer.read_files()
    with file.open("a") as more:
        more.write("rm\n")
    observer.read_files()
    ((first, second),) = (each.lines for each in collector.record(0.0, 1.0, settled=True).instances)
    assert (first.word, first.value, second.word, second.value) == (Word.START, "v0", Word.TERM, "")
    assert round(second.at - first.at, 1) == 1.5
    assert abs(first.at - (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + 5.0)) < 1.0


def test_the_audit_log_tells_which_requests_were_created(tmp_path: Path) -> None:
    log, collector = tmp_path / "audit.json", Collector({}, frozenset(), "app")
    log.write_text(created("before"))
    observer = Observer(cast("Cluster", SimpleNamespace(namespace="soak")), collector, tmp_path, log)
    others = (
        created("refused", code=403), created("dry", uri="/x?dryRun=All"), created("other", namespace="shop"),
        created("read", verb="get"), '{"verb": "create", "objectRef": {"resource": "pods"}}\n',
    )  # fmt: skip
    with log.open("a") as more:
        more.write("".join(others) + created("one"))
    observer.read_files()
    assert collector.audited == {"one"}
