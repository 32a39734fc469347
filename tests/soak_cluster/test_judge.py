"""The judge finds each broken promise in a record with one planted wrong, and nothing in the right one."""

from dataclasses import replace
from typing import Any

import pytest

from tests.soak_cluster.judge import judge, recovery
from tests.soak_cluster.record import (
    Exit,
    Fault,
    Instance,
    Kind,
    Line,
    Part,
    Pod,
    Policy,
    Record,
    Request,
    Word,
)

APP_OLD = Instance(
    "a-1", "u-1", "app", 10.0, 104.0, "s-1",
    lines=(Line(10, Word.START, "one"), Line(101, Word.HOOK), Line(102, Word.HOOKED), Line(102.2, Word.TERM)),
)  # fmt: skip
APP_NEW = Instance("a-2", "u-1", "app", 105.0, sandbox="s-1", lines=(Line(105, Word.START, "two"),))
SECOND_STOPPED = replace(APP_NEW, ended=107.0, lines=(Line(105, Word.START, "two"), Line(105.5, Word.HOOK)))
THIRD = replace(APP_NEW, id="a-3", started=108.0)
SIDE = Instance("b-1", "u-1", "side", 10.0, sandbox="s-1", lines=(Line(10, Word.START),))
OTHER = Instance("c-1", "u-2", "app", 10.0, sandbox="s-2", lines=(Line(10, Word.START, "two"),))
POD = Pod("u-1", "web-1", "web", ((10.0, True), (101.0, False), (106.0, True)), ((10.0, "app", "x:1"),))
DOWN = replace(POD, ready=((10.0, True), (101.0, False), (170.0, True)))
NEIGHBOUR = Pod("u-2", "web-2", "web", ((10.0, True),), ((10.0, "app", "x:1"),))
REQUEST = Request(
    "r-1", "first", "u-1", 100.0, ("app",), 100.0,
    targets={"app": ("a-1",)}, killed={"app": 102.1}, phases={"app": ("Succeeded", 106.0)},
    completed=106.0, gone=136.5, deadline=120.0, ttl=30.0,
)  # fmt: skip
POLICY = Policy("web", "web", "app", ((50.0, "one"), (90.0, "two")), {"Ready": ("True", "Idle")})
GOOD = Record(
    0.0, 400.0, 600.0,
    requests=(REQUEST,), instances=(APP_OLD, APP_NEW, SIDE, OTHER), pods=(POD, NEIGHBOUR), policies=(POLICY,),
    most_unready={"web": 1}, hooks=frozenset({"app"}), audited=frozenset({"first"}),
)  # fmt: skip


def with_app(**changes: Any) -> tuple[Instance, ...]:
    return replace(APP_OLD, **changes), APP_NEW, SIDE, OTHER


def lines(*words: tuple[float, Word]) -> tuple[Line, ...]:
    return Line(10, Word.START, "one"), *(Line(at, word) for at, word in words)


def with_request(**changes: Any) -> tuple[Request, ...]:
    return (replace(REQUEST, **changes),)


def second(**changes: Any) -> Request:
    return replace(REQUEST, uid="r-2", name="second", created=100.5, **changes)


def run_of_two(**changes: Any) -> tuple[Request, ...]:
    """A run that restarts both pods. The first is open until 106."""
    other = Request(
        "r-3", "other", "u-2", 103.0, ("app",), stamp=103.0, run="run-1", completed=110.0, phases={"app": ("Failed", 1)}
    )
    return replace(REQUEST, run="run-1"), replace(other, **changes)


BUDGET = "budgets are kept"
BELONGS = "each stop belongs to a request"
WRONG: dict[str, tuple[Record, str]] = {
    "a stop for no request": (replace(GOOD, requests=(), audited=frozenset()), BELONGS),
    "the successor is stopped too": (replace(GOOD, instances=(APP_OLD, replace(
        APP_NEW, ended=107.0, lines=(Line(105, Word.START, "two"), Line(106, Word.TERM))), SIDE, OTHER)), BELONGS),
    "a neighbour is stopped": (
        replace(GOOD, instances=(APP_OLD, APP_NEW, replace(SIDE, ended=103.0), OTHER)), BELONGS),
    "the request is younger than the stop": (
        replace(GOOD, requests=with_request(created=110.0, stamp=110.0)), BELONGS),
    "a stop after the end": (replace(GOOD, requests=with_request(
        completed=90.0, phases={"app": ("Failed", 90.0)})), "no stop after the end"),
    "a stop after the deletion": (replace(GOOD, requests=with_request(completed=None, phases={}, deleting=90.0)),
                                  "no stop after the end"),
    "two requests stop one instance": (
        replace(GOOD, requests=(REQUEST, second()), audited=None), "each stop belongs to one request"),
    "two stops of one request": (replace(GOOD, requests=with_request(
        targets={"app": ("a-1", "a-2")}, completed=109.0, gone=140.0, phases={"app": ("Succeeded", 109.0)}),
        instances=(APP_OLD, SECOND_STOPPED, THIRD, SIDE, OTHER)), "at most one stop a request and container"),
    "the hook runs twice": (replace(GOOD, instances=with_app(
        lines=lines((101, Word.HOOK), (102, Word.HOOKED), (102.5, Word.HOOK), (103, Word.TERM)))), "a hook runs once"),
    "no hook": (replace(GOOD, instances=with_app(lines=lines((101, Word.TERM)))), "a hook runs before the stop"),
    "Succeeded without a newer instance": (
        replace(GOOD, instances=(APP_OLD, SIDE, OTHER), policies=()), "a success is true"),
    "Succeeded beside the old one": (replace(GOOD, instances=with_app(ended=None)), "a success is true"),
    "open after the deadline": (
        replace(GOOD, requests=with_request(completed=None, phases={}, gone=None)), "every request ends"),
    "ended long after the deadline": (
        replace(GOOD, requests=with_request(completed=300.0, gone=330.0)), "every request ends"),
    "Completed with a container left": (replace(GOOD, requests=with_request(phases={})), "every request ends"),
    "a container without an end": (
        replace(GOOD, requests=with_request(containers=("app", "side"))), "every request ends"),
    "its deletion does not end": (
        replace(GOOD, requests=with_request(deleting=150.0, gone=None)), "a deleted request goes"),
    "the TTL is forgotten": (replace(GOOD, requests=with_request(gone=None)), "the TTL is kept"),
    "deleted before the TTL": (replace(GOOD, requests=with_request(gone=116.0)), "the TTL is kept"),
    "held unready": (replace(GOOD, pods=(replace(POD, holders=("first",)), NEIGHBOUR)), "nobody is left unready"),
    "left unready": (
        replace(GOOD, pods=(replace(POD, ready=((10.0, True), (101.0, False))), NEIGHBOUR)), "nobody is left unready"),
    "two pods of a run at once": (replace(GOOD, requests=run_of_two(), audited=None), BUDGET),
    "a run beside a pod that is down": (replace(
        GOOD, requests=run_of_two(created=140.0, stamp=140.0, completed=150.0), pods=(DOWN, NEIGHBOUR), audited=None),
        BUDGET),
    "old data": (replace(GOOD, policies=(replace(POLICY, edits=(*POLICY.edits, (120.0, "three"))),)),
                 "policies bring the last edit"),
    "a daemon ends by itself": (replace(GOOD, exits=(Exit(99.0, Part.NODE, 1, "panic"),)), "daemons keep running"),
    "a request that no watch reported": (replace(GOOD, audited=frozenset({"first", "second"})), "the record is whole"),
}  # fmt: skip

KILLED = Fault(102.3, 103.0, Kind.KILL, Part.NODE)
RIGHT: dict[str, Record] = {
    "nothing is wrong": GOOD,
    "a container that crashed": replace(GOOD, instances=(APP_OLD, APP_NEW, replace(
        SIDE, ended=103.0, lines=(Line(103, Word.CRASH),)), OTHER)),
    "a deleted pod": replace(GOOD, requests=(), audited=None, policies=(), pods=(replace(POD, deleting=100.0),)),
    "another image": replace(GOOD, requests=(), audited=None, pods=(replace(
        POD, images=((10.0, "app", "x:1"), (100.0, "app", "x:2"))), NEIGHBOUR)),
    "another sandbox": replace(GOOD, requests=(), audited=None, instances=(
        APP_OLD, replace(APP_NEW, sandbox="s-9"), SIDE, OTHER)),
    "the daemon died in the hook": replace(GOOD, faults=(KILLED,), instances=with_app(
        lines=lines((101, Word.HOOK), (103.5, Word.HOOK), (104, Word.TERM)))),
    "the hook of a runtime that was down": replace(
        GOOD, faults=(Fault(100.5, 101.0, Kind.KILL, Part.RUNTIME),), instances=with_app(
            lines=lines((101, Word.TERM)))),
    "the hook could not begin within the grace period, and the request says so": replace(
        GOOD, requests=with_request(failed_hooks=frozenset({"app"})), instances=with_app(
            lines=lines((110, Word.TERM)))),
    "the first request had ended, the second one escalates": replace(GOOD, audited=None, requests=(
        replace(REQUEST, deleting=102.2, completed=None, phases={}), second(killed={"app": 103.0}))),
    "the deadline passed while no manager ran": replace(
        GOOD, requests=with_request(completed=330.0, gone=360.0), faults=(
            Fault(210.0, 250.0, Kind.KILL, Part.MANAGER),)),
    "a run begins with the pod that is down": replace(
        GOOD, requests=run_of_two(created=140.0, stamp=140.0), audited=None, pods=(DOWN, replace(
            NEIGHBOUR, ready=((99.0, False), (150.0, True))))),
    "a watch that was late with the request, not with the pods": replace(
        GOOD, requests=run_of_two(created=140.0, stamp=110.0, completed=150.0), audited=None, pods=(replace(
            POD, ready=((10.0, True), (101.0, False), (106.0, True), (120.0, False), (170.0, True))), NEIGHBOUR)),
    "a budget of two": replace(GOOD, requests=run_of_two(), audited=None, most_unready={"web": 2}),
    "one pod after the other": replace(GOOD, requests=run_of_two(created=106.5, stamp=106.0), audited=None),
    "a condition says why the data is old": replace(GOOD, policies=(replace(
        POLICY, edits=(*POLICY.edits, (120.0, "three")), conditions={"Ready": ("False", "RunFailed")}),)),
    "an end by Ctrl-C": replace(GOOD, settled=False, pods=(replace(POD, holders=("first",)), NEIGHBOUR)),
    "no audit log": replace(GOOD, audited=None),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_planted_wrong_is_found(wrong: str) -> None:
    record, promise = WRONG[wrong]
    assert {broken.promise for broken in judge(record)} == {promise}


@pytest.mark.parametrize("right", RIGHT)
def test_what_is_right_passes(right: str) -> None:
    assert judge(RIGHT[right]) == []


def test_the_recovery_of_a_fault_is_the_end_of_what_was_open_in_it() -> None:
    assert recovery(GOOD, KILLED) == pytest.approx(3.0)
    assert recovery(GOOD, replace(KILLED, at=300.0, until=301.0)) == 0.0
