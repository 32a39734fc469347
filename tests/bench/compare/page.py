"""The tables and the plot of docs/benchmarks.md, from what was measured."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from tests.bench.compare.measure import ALL, COMMANDS, KEPT
from tests.bench.compare.ways import WAYS

Rows = Sequence[Mapping[str, Any]]
Column = tuple[str, Callable[[Mapping[str, Any]], float | None], str]
"""Its head, the value of a row, and how it is written."""
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


def _part(*names: str) -> Callable[[Mapping[str, Any]], float]:
    """How much CPU these parts have used for a restart, in ms."""
    return lambda row: sum(row["cpu"].get(each, 0.0) for each in names)


def _memory(*names: str) -> Callable[[Mapping[str, Any]], float | None]:
    """Memory of one of these parts, in MiB."""
    return lambda row: next((row["memory"][each] for each in names if each in row["memory"]), None)


_TIMES: Sequence[Column] = (
    ("ready again: p50, s", lambda row: statistics.median(row["seconds"]), ".2f"),
    ("all, s", lambda row: max(row["seconds"]), ".2f"),
    ("not Ready, s", lambda row: row["missing"], ".2f"),
    ("most not Ready", lambda row: row["most"], ".0f"),
    ("container down: p50, s", lambda row: statistics.median(row["down"]) if row["down"] else None, ".2f"),
)
_COSTS: Sequence[Column] = (
    ("writes to the API server", lambda row: row["writes"], ".1f"),
    ("CPU, ms: all", _part(ALL), ".0f"),
    ("API server", _part("kube-apiserver"), ".0f"),
)
_COSTS_OF_TOOLS: Sequence[Column] = (
    ("the tool", _part(*_DAEMONS, *_MANAGERS, COMMANDS), ".0f"),
    ("its daemon, MiB", _memory(*_DAEMONS), ".0f"),
    ("its manager, MiB", _memory(*_MANAGERS), ".0f"),
)


def _lines(rows: Rows, columns: Sequence[Column], of_tools: Sequence[Column] = ()) -> str:
    """A table with a line for each way. Some columns say something only of ways that something is installed for."""
    lines = []
    for way in dict.fromkeys(each["way"] for each in rows):
        cells = []
        for _, value, form in (*columns, *(of_tools if way in _TOOLS else ())):
            found = [value(each) for each in _of(rows, way)]
            cells.append(_cell([each for each in found if each is not None], form))
        lines.append((way, *cells, *[""] * (len(columns) + len(of_tools) - len(cells))))
    return table(("", *(head for head, *_ in (*columns, *of_tools))), lines)


def many(rows: Rows) -> str:
    """All pods of a Deployment at once, or in a run: times, and what each restart costs."""
    costs = "What a restart costs, and the memory of the tool:"
    return f"{_lines(rows, _TIMES)}\n\n{costs}\n\n{_lines(rows, _COSTS, _COSTS_OF_TOOLS)}"


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
    figure, axes = plt.subplots(1, len(counts), figsize=(9, 4), squeeze=False)
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
    figure.legend(*axes[0][-1].get_legend_handles_labels(), frameon=False, fontsize=8, loc="lower center", ncols=4)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
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
