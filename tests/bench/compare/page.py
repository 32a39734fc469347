"""The tables and the plot of docs/benchmarks.md, from what was measured."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from tests.bench.compare.measure import ALL, COMMANDS, KEPT
from tests.bench.compare.ways import WAYS

Rows = Sequence[Mapping[str, Any]]
CALLS_A_SECOND, CALLS_AT_ONCE, CALLS_A_RESTART = 50, 100, 4
"""kubelet's limits (`kubeAPIQPS`, `kubeAPIBurst`), and what it asks of the API server for one restart."""
_DAEMONS, _MANAGERS = ("node daemon", "kruise-daemon"), ("managers", "kruise-manager")
_TOOLS = {each.name for each in WAYS if each.of}


def read(file: Path) -> dict[str, Any]:
    """What was measured, in the order of the ways."""
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    order = [each.name for each in WAYS]
    found["rows"].sort(key=lambda row: order.index(row["way"]))
    return found


def _cell(values: Sequence[float], form: str = ".2f") -> str:
    """The median of rounds, with the lowest and highest if there are several."""
    if not values:
        return ""
    middle = f"{statistics.median(values):{form}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} to {max(values):{form}})"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _of(rows: Rows, way: str) -> list[Mapping[str, Any]]:
    return [each for each in rows if each["way"] == way]


def one(rows: Rows) -> str:
    """One pod after the other."""
    head = ("", "ready again: p50, s", "slowest, s", "not Ready: p50, s", "container down: p50, s", "restarts")
    lines = []
    for way in dict.fromkeys(each["way"] for each in rows):
        took, missing, down = ([value for each in _of(rows, way) for value in each[key]]
                               for key in ("seconds", "missing", "down"))  # fmt: skip
        middles = (f"{statistics.median(each):.2f}" if each else "" for each in (missing, down))
        lines.append((way, f"{statistics.median(took):.2f}", f"{max(took):.2f}", *middles, str(len(took))))
    return table(head, lines)


def many(rows: Rows) -> str:
    """All pods of a Deployment at once, or in a run."""
    head = ("", "p50, s", "all, s", "not Ready, s", "most not Ready", "container down: p50, s", "writes a restart",
            "CPU a restart, ms: all", "API server", "the tool", "its daemon, MiB", "its manager, MiB")  # fmt: skip
    lines = []
    for way in dict.fromkeys(each["way"] for each in rows):
        found = _of(rows, way)
        tool = (*_DAEMONS, *_MANAGERS, COMMANDS) if way in _TOOLS else ()
        cpu = ([sum(each["cpu"].get(part, 0.0) for part in some) for each in found if some]
               for some in ((ALL,), ("kube-apiserver",), tool))  # fmt: skip
        memory = ([each["memory"][part] for each in found for part in some if part in each["memory"] and tool]
                  for some in (_DAEMONS, _MANAGERS))  # fmt: skip
        lines.append((
            way,
            _cell([statistics.median(each["seconds"]) for each in found]),
            _cell([max(each["seconds"]) for each in found]),
            _cell([each["missing"] for each in found]),
            _cell([each["most"] for each in found], ".0f"),
            _cell([statistics.median(each["down"]) for each in found if each["down"]]),
            _cell([each["writes"] for each in found], ".1f"),
            *(_cell(each, ".0f") for each in (*cpu, *memory)),
        ))  # fmt: skip
    return table(head, lines)


def kept(rows: Rows) -> str:
    """What a pod keeps."""

    def cell(each: Mapping[str, Any], name: str) -> str:
        asked = f", with {each['asked by']}" if name == KEPT[-1] and each["asked by"] else ""
        return f"yes{asked}" if each["keeps"][name] else "no"

    return table(("", *KEPT), ((each["way"], *(cell(each, name) for name in KEPT)) for each in rows))


def draw(rows: Rows, target: Path) -> None:
    """Draw when the pods were ready again that were restarted at once, with what kubelet's own limit allows."""
    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - the backend is chosen first

    mpl.rcParams.update({"svg.hashsalt": "crrd", "font.family": "sans-serif", "font.size": 9})
    counts = sorted({each["pods"] for each in rows})
    figure, axes = plt.subplots(1, len(counts), figsize=(9, 3.6), squeeze=False)
    for axis, count in zip(axes[0], counts, strict=True):
        for way in dict.fromkeys(each["way"] for each in rows):
            times = [each["seconds"] for each in _of(rows, way) if each["pods"] == count]
            if times:
                middle = sorted(times, key=max)[len(times) // 2]  # the median round
                axis.step([0, *middle], range(len(middle) + 1), where="post", label=way, linewidth=1.4)
        first = min(count, CALLS_AT_ONCE / CALLS_A_RESTART)
        limit = (count - first) * CALLS_A_RESTART / CALLS_A_SECOND
        axis.plot([0, limit], [first, count], color="0.6", linestyle=":", label="limit of kubelet's calls")
        axis.set(title=f"{count} at once", xlabel="seconds", ylabel="pods ready again", xlim=0, ylim=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][-1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def page(found: Mapping[str, Any]) -> str:
    """All tables, with headings."""
    rows: Rows = found["rows"]
    parts = [
        f"{found['date']}, {found['commit']}: {', '.join(f'{key} {value}' for key, value in found['versions'].items())}"
    ]
    if singles := [each for each in rows if each["row"] == "one"]:
        parts += ["One pod after the other:", one(singles)]
    for count in sorted({each["pods"] for each in rows if each["row"] == "at once"}):
        parts += [
            f"{count} at once:",
            many([each for each in rows if each["row"] == "at once" and each["pods"] == count]),
        ]
    if runs := [each for each in rows if each["row"] == "run"]:
        parts += [f"{runs[0]['pods']} pods, at most 10 % unready:", many(runs)]
    if keeps := [each for each in rows if each["row"] == "keeps"]:
        parts += ["What a pod keeps:", kept(keeps)]
    return "\n\n".join(parts)
