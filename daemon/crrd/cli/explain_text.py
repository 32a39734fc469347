"""An explanation as text for people, and as JSON for programs."""

import os
import shutil
import sys
import textwrap
from typing import Any

from crrd.cli.explain_sentences import says_since, sentence, steps
from crrd.core.api.time import format_duration
from crrd.core.api.types import RequestPhase
from crrd.core.explain.findings import Explanation, Finding, Topic, Verdict
from crrd.lib.plain import plain

_COLORS = {Verdict.SUCCEEDED: "32", Verdict.FAILED: "31", Verdict.MOVING: "36", Verdict.STUCK: "33"}


def render_json(found: Explanation) -> dict[str, Any]:
    """An explanation as JSON; times are seconds, null where nobody can tell."""
    return {
        "request": found.request.key,
        "phase": found.request.status.phase.value,
        "ageSeconds": round(found.age, 1),
        "pod": found.request.pod_key,
        "node": found.node,
        "verdict": found.verdict.value,
        **_finding(found, found.cause, cause_sentence(found)),
        "containers": [
            {
                "name": each.name,
                "phase": each.phase,
                **_finding(found, each.finding, sentence(found, each.finding)),
                "stuck": each.finding.stuck,
            }
            for each in found.containers
        ],
        "notes": [note_sentence(found, note) for note in found.notes],
    }


def _finding(found: Explanation, finding: Finding, what: str) -> dict[str, Any]:
    return {
        "reason": finding.reason.name.title().replace("_", ""),
        "what": what,
        "sinceSeconds": None if finding.since is None else round(finding.since, 1),
        "advice": steps(found, finding),
    }


def cause_sentence(found: Explanation) -> str:
    """What holds for the request, with the name of the container that it is about."""
    container = f"container {found.cause.container}: " if found.cause.container else ""
    return container + sentence(found, found.cause)


def note_sentence(found: Explanation, note: Finding) -> str:
    """A note, and what to do about it."""
    return "; ".join([sentence(found, note), *steps(found, note)])


def render(found: Explanation) -> str:
    """An explanation for people: what it waits for first, what to do, then the rest."""
    cause, request, phase = found.cause, found.request, found.request.status.phase
    where = f"pod {request.pod_key}" + (f" on node {found.node}" if found.node else "")
    created = f"created {format_duration(found.age)} ago"
    lines = [plain(f"{request.key}: {phase or 'no phase yet'}, {created}, {where}"), ""]
    since = ""
    if cause.since is not None and not says_since(cause):
        since = f" ({format_duration(cause.since)} {'ago' if phase is RequestPhase.COMPLETED else 'so far'})"
    lines += _wrapped(cause_sentence(found) + since, color=_COLORS[found.verdict])
    for step in steps(found, cause):
        lines += _wrapped(step, first="  > ", others="    ")
    if any(each.name != cause.container and each.finding.reason is not Topic.TURN_AWAITED for each in found.containers):
        widths = [max(len(plain(getattr(each, part))) for each in found.containers) for part in ("name", "phase")]
        lines.append("")
        for each in found.containers:
            head = f"  {plain(each.name):{widths[0]}}  {each.phase:{widths[1]}}  "
            lines += _wrapped(sentence(found, each.finding), first=head, others=" " * len(head))
    if found.notes:
        lines.append("")
        for note in found.notes:
            lines += _wrapped(note_sentence(found, note), first="  - ", others="    ")
    return "\n".join(lines)


def _wrapped(text: str, *, first: str = "", others: str = "", color: str = "") -> list[str]:
    """A paragraph: wrapped and coloured on a terminal, one line elsewhere."""
    text = plain(text)
    if not sys.stdout.isatty():
        return [first + text]
    width = max(60, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )
    if not color or os.environ.get("NO_COLOR"):
        return lines
    return [f"\033[1;{color}m{line}\033[0m" for line in lines]
