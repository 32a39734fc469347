"""What the node's parts reach the outside world through: one of each port."""

from dataclasses import dataclass

from crrd.ports import EventSink, Hooks, KubeletHealth, PodFinder, Recorder, Runtime, StatusWriter


@dataclass(frozen=True, slots=True)
class Edges:
    """One of each; see `crrd.ports`."""

    runtime: Runtime
    hooks: Hooks
    writer: StatusWriter
    pods: PodFinder
    kubelet: KubeletHealth
    events: EventSink
    recorder: Recorder
