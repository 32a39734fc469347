"""`make pictures`: the dashboard, drawn from a real Prometheus after a run of some minutes on a real containerd.

Not Grafana, but its panels: the same queries, at the same places. For docs/monitoring.md.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import isnan
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from crrd_localnode.daemons import running_manager
from tests.support import containerd as real
from tests.support import prometheus as prom
from tests.support import traffic
from tests.support.cluster import Cluster, on_local_node
from tests.support.daemons import NodeDaemon
from tests.support.faulty_node import FaultyNode
from tests.support.images import BUSYBOX_IMAGE, BUSYBOX_IMAGE_2

OUTPUT = Path(__file__).parents[2] / "docs" / "monitoring.png"
RUN_SECONDS = 150.0
STEP_SECONDS = 2
COLUMN_INCHES, ROW_INCHES = 0.72, 0.36
PALETTE = ("#7eb26d", "#e0a800", "#5b9bd5", "#ef843c", "#e24d42", "#8a6fc1", "#2f8f9d", "#c15c9c", "#7f7f7f", "#a3be4c")


def seconds(value: float, _: object = None) -> str:
    """A duration as Grafana writes it."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1000:.3g} ms" if value else "0"


def plain(value: float, _: object = None) -> str:
    """A number, short."""
    return f"{value:.3g}"


Format = Callable[[float, object], str]
FORMATS: dict[str, Format] = {
    "s": seconds,
    "bytes": lambda value, _: f"{value / 2**20:.3g} MiB",
    "percentunit": lambda value, _: f"{value:.1%}",
    "reqps": lambda value, _: f"{value:.2g}/s",
    "ops": lambda value, _: f"{value:.2g}/s",
}


def named(legend: str, labels: dict[str, str]) -> str:
    """A legend with its labels filled in."""
    text = legend
    for key, value in labels.items():
        text = text.replace("{{" + key + "}}", value)
    return text.strip() if "{{" not in text else ", ".join(labels.values()) or "all"


async def draw_panel(axes: Axes, panel: prom.Panel, prometheus: prom.Prometheus, begin: float, end: float) -> None:
    """One panel into its place."""
    form = FORMATS.get(panel.unit, plain)
    axes.set_title(panel.title, fontsize=9, loc="left", fontweight="bold", color="#333333")
    if panel.kind == "stat":
        value = await prometheus.value(panel.queries[0][0])
        axes.axis("off")
        axes.text(0.5, 0.42, form(value, None), ha="center", va="center", fontsize=21, color="#2b5d34")
    elif panel.kind == "bargauge":
        await _bars(axes, panel, prometheus, form)
    else:
        await _lines(axes, panel, prometheus, form, (begin, end))


async def _bars(
    axes: Axes, panel: prom.Panel, prometheus: prom.Prometheus, form: Callable[[float, object], str]
) -> None:
    rows = [
        (named(legend, sample["metric"]) or "all", float(sample["value"][1]))
        for query, legend in panel.queries
        for sample in await prometheus.query(query)
    ]
    rows = sorted(rows, key=lambda row: row[1])[-9:]
    axes.barh([name for name, _ in rows], [value for _, value in rows], color=PALETTE[2], height=0.6)
    for place, (_, value) in enumerate(rows):
        axes.text(value, place, f" {form(value, None)}", va="center", fontsize=7.5)
    axes.margins(x=0.18)
    axes.set_ylim(min(len(rows) - 4, 0) - 0.7, len(rows) - 0.3)
    axes.tick_params(labelsize=7.5, length=0)
    axes.xaxis.set_visible(False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


async def _lines(
    axes: Axes,
    panel: prom.Panel,
    prometheus: prom.Prometheus,
    form: Format,
    span: tuple[float, float],
) -> None:
    shown: list[tuple[str, list[tuple[float, float]]]] = []
    for query, legend in panel.queries:
        data = await prometheus.api(
            "query_range", query=query, start=str(span[0]), end=str(span[1]), step=str(STEP_SECONDS)
        )
        for series in data["result"]:
            points = [(float(at), float(value)) for at, value in series["values"]]
            shown.append((named(legend, series["metric"]), points))
    eventful = [one for one in shown if any(value and not isnan(value) for _, value in one[1])]
    for (name, points), colour in zip(eventful or shown, PALETTE, strict=False):
        axes.plot([at for at, _ in points], [value for _, value in points], color=colour, linewidth=1.2, label=name)
    axes.set_xlim(span)
    axes.set_ylim(0, None if eventful else 1)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=7.5)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(clock))
    axes.yaxis.set_major_formatter(FuncFormatter(form))
    axes.spines[["top", "right"]].set_visible(False)
    if shown:
        axes.legend(fontsize=6.5, ncols=2, frameon=False, loc="upper left", bbox_to_anchor=(-0.02, -0.14))


def clock(at: float, _: object = None) -> str:
    """A Unix time as people read it."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


async def draw(prometheus: prom.Prometheus, begin: float, end: float, output: Path) -> None:
    """The whole dashboard into one picture."""
    panels = prom.panels("30s")
    rows = max(panel.place[1] + panel.place[3] for panel in panels)
    figure = plt.figure(figsize=(24 * COLUMN_INCHES, rows * ROW_INCHES), dpi=80, facecolor="white")
    for panel in panels:
        x, y, width, height = panel.place
        if panel.kind == "row":
            figure.text(0.01, 1 - (y + 0.75) / rows, panel.title, fontsize=12, fontweight="bold", color="#1f4e79")
            continue
        below = 2.4 if panel.kind == "timeseries" else 0.6
        left = 2.6 if panel.kind == "bargauge" else 1.0
        box = (
            (x + left) / 24,
            1 - (y + height - below) / rows,
            (width - left - 0.4) / 24,
            (height - below - 1.0) / rows,
        )
        await draw_panel(figure.add_axes(box), panel, prometheus, begin, end)
    figure.savefig(output)
    plt.close(figure)


async def _work(cluster: Cluster) -> None:
    """An operator's day, in a hurry."""
    await traffic.start_pods(cluster)
    await traffic.send_requests(cluster)
    await traffic.send_stuck_request(cluster)
    end = time.monotonic() + RUN_SECONDS
    turn = 0
    while time.monotonic() < end:
        turn += 1
        print(f"  turn {turn}: {end - time.monotonic():.0f} s left", flush=True)
        await traffic.send_plain_requests(cluster, f"-{turn}")


async def run(output: Path) -> None:
    """Start everything, work, draw."""
    containerd = real.Containerd()
    await asyncio.to_thread(containerd.prepare)
    with tempfile.TemporaryDirectory(prefix="crrd-pictures-") as name:
        folder = Path(name)
        try:
            async with (
                FaultyNode(node_name="worker-1", cri_endpoint=containerd.endpoint) as node,
                on_local_node(
                    node, folder, image=BUSYBOX_IMAGE, second_image=BUSYBOX_IMAGE_2, containerd=containerd
                ) as cluster,
                running_manager(node) as manager,
                NodeDaemon(cluster, folder / "node.log") as daemon,
            ):
                jobs = {
                    "crrd-node": {"worker-1": daemon.address},
                    "crrd-manager": {"crrd-manager-0": manager.address},
                }
                async with prom.Prometheus(folder / "prometheus", jobs) as prometheus:
                    await prometheus.until("sum(up)", lambda value: value == len(jobs))
                    begin = time.time()
                    await _work(cluster)
                    await draw(prometheus, begin, time.time(), output)
        finally:
            await asyncio.to_thread(containerd.destroy)


def main(arguments: Sequence[str]) -> int:
    """Draw into docs/, or into the file that is named."""
    if reason := real.missing() or prom.missing():
        print(f"cannot draw: {reason}", file=sys.stderr)
        return 1
    output = Path(arguments[0]) if arguments else OUTPUT
    mpl.use("Agg")
    print(f"a run of {RUN_SECONDS:.0f} s, then {output}", flush=True)
    asyncio.run(run(output))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
