"""What the node's parts reach the outside world through: one of each port."""

from dataclasses import dataclass

from daemon.ports import EventSink, Hooks, KubeletHealth, PodFinder, Recorder, Runtime, StatusWriter


@dataclass(frozen=True, slots=True)
class Edges:
    """One of each; see `daemon.ports`."""

    runtime: Runtime
    hooks: Hooks
    writer: StatusWriter
    pods: PodFinder
    kubelet: KubeletHealth
    events: EventSink
    recorder: Recorder
