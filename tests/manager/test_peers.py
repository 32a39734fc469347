"""What other policies see of one: the data with which its run has failed, until it has tried this data once more."""

from dataclasses import replace
from typing import Any, cast

import pytest

from crrd.core.config.references import Kind
from crrd.core.policy.observed import Observed
from crrd.core.policy.order import Claims
from crrd.core.policy.types import PolicyStatus, RunRecord, UsedObject
from crrd.manager.policies.look import Memory
from crrd.manager.policies.peers import Peers
from crrd.manager.policies.runs import PolicyRuns
from crrd.manager.policies.watches import NamespaceWatches
from tests.core.policy.test_decide import KEY, PLAIN, data, text

CFG = (Kind.CONFIG_MAP, "cfg")
RECORD = UsedObject("app", *CFG, "b", text(5), "a", keys=("data.*",))
RUN = RunRecord("r", "configChange", ("app",), text(15), text(15), 1, objects=(f"ConfigMap cfg (data.*) {text(15)}",))
FAILED = replace(RUN, finished=text(20), failed=True, hashes=("b",))
AGAIN = replace(RUN, name="r2", generation=2)


class OneVersion:
    """Watches of objects that do not change."""

    def version(self, namespace: str, kind: Kind, name: str) -> str:
        return f"{namespace}/{kind}/{name}"


class Active:
    """The run that is in progress, if there is one."""

    def __init__(self, run: Any = None) -> None:
        self.run = run

    def active(self, key: str) -> Any:
        assert key == PLAIN.key
        return self.run


class Begun:
    def __init__(self, *, past_first_step: bool) -> None:
        self.past_first_step = past_first_step


@pytest.mark.parametrize(
    ("active", "refused"),
    [(None, True), (Begun(past_first_step=False), True), (Begun(past_first_step=True), False)],
)
def test_data_that_has_failed_is_refused_until_a_first_step_with_it_is_done(active: Any, refused: bool) -> None:
    policy = replace(PLAIN, generation=2, status=PolicyStatus((RECORD,), AGAIN, failed=(FAILED,)))
    memory = Memory(seen={KEY: ("shop/ConfigMap/cfg", (), frozenset(), data("b")[KEY], "")})
    watches = cast("NamespaceWatches", OneVersion())
    peers = Peers({policy.key: memory}, cast("PolicyRuns", Active(active)), watches, lambda _: None)
    peers.claim(policy, Observed(data=data("b")), Claims(runs=frozenset({CFG})), ())
    (peer,) = peers.of([policy])
    assert peer.refused == ({CFG} if refused else set())
    assert peer.runs == {CFG}


def test_who_leads_next_knows_it_before_it_has_decided() -> None:
    for run in (FAILED, replace(FAILED, generation=2)):
        policy = replace(PLAIN, status=PolicyStatus((RECORD,), run))
        peers = Peers({}, cast("PolicyRuns", Active()), cast("NamespaceWatches", OneVersion()), lambda _: None)
        (peer,) = peers.of([policy])
        assert peer.refused == {CFG}
        assert peer.failed == ("r" if run is FAILED else "")


def test_a_run_for_other_keys_of_the_object_does_not_try_what_has_failed() -> None:
    """Then KEY has changed, which side uses, and the run for side has done its first step."""
    app, side = replace(RECORD, keys=("LOG",)), UsedObject("side", *CFG, "y", text(50), "x", keys=("KEY",))
    first = replace(FAILED, objects=(f"ConfigMap cfg (LOG) {text(15)}",))
    written = f"ConfigMap cfg (KEY) {text(60)}"
    run = RunRecord("r2", "configChange", ("side",), text(60), text(60), 1, objects=(written,))
    policy = replace(PLAIN, status=PolicyStatus((app, side), run, failed=(first,)))
    key = ("app", app.part)
    memory = Memory(seen={key: ("shop/ConfigMap/cfg", (), frozenset(), data("b", None, key)[key], "")})
    active = cast("PolicyRuns", Active(Begun(past_first_step=True)))
    peers = Peers({policy.key: memory}, active, cast("NamespaceWatches", OneVersion()), lambda _: None)
    peers.claim(policy, Observed(data=data("b", None, key)), Claims(frozenset({CFG}), frozenset({CFG})), ())
    (peer,) = peers.of([policy])
    assert peer.refused == {CFG}
