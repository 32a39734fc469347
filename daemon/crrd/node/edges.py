"""What the node's parts reach the outside world through: one of each port."""

from dataclasses import dataclass

from crrd.ports import EventSink, Hooks, Kubelet, PodFinder, Recorder, Runtime, StatusWriter


@dataclass(frozen=True, slots=True)
class Edges:
    """One of each; see `crrd.ports`."""

    runtime: Runtime
    hooks: Hooks
    writer: StatusWriter
    pods: PodFinder
    kubelet: Kubelet
    events: EventSink
    recorder: Recorder
