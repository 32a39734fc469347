"""The figures of a soak, and the stories of broken promises."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from tests.soak_cluster.judge import Broken, recovery
from tests.soak_cluster.record import Instance, Pod, Record, Request

BEFORE, AFTER = 60.0, 15.0  # Seconds of a story around what is broken


@dataclass(slots=True)
class Tally:
    """Counts over all rounds."""

    rounds: int = 0
    seconds: float = 0.0
    requests: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    crashes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    recovery: dict[str, float] = field(default_factory=dict)  # Fault -> the longest time
    broken: dict[tuple[str, str], str] = field(default_factory=dict)  # Promise and sentence -> the story

    def add(self, record: Record, broken: list[Broken]) -> None:
        """Count a round."""
        self.rounds += 1
        self.seconds += record.ended - record.began
        ours = [each for each in record.requests if each.created >= record.began]
        self.requests += len(ours)
        self.phases += Counter(phase for each in record.requests for phase, _ in each.phases.values())
        ended = [each for each in record.instances if each.ended is not None]
        self.restarts += sum(1 for each in ended if each.stopped is not None)
        self.crashes += sum(1 for each in ended if each.stopped is None)
        for fault in record.faults:
            name = f"{fault.kind}: {fault.part}"
            self.faults[name] += 1
            self.recovery[name] = max(self.recovery.get(name, 0.0), recovery(record, fault))
        for each in broken:
            self.broken.setdefault((each.promise, each.sentence), story(record, each))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table."""
        yield f"| rounds, and hours | {self.rounds}, {self.seconds / 3600:.2f} |"
        yield f"| requests | {self.requests} |"
        yield f"| their containers: Succeeded, Failed | {self.phases['Succeeded']}, {self.phases['Failed']} |"
        yield f"| containers stopped, and crashed | {self.restarts}, {self.crashes} |"
        for name, count in sorted(self.faults.items()):
            yield f"| {name} | {count}; at most {self.recovery[name]:.0f} s until the open requests had ended |"
        yield f"| broken promises | {len(self.broken)} |"


def story(record: Record, broken: Broken) -> str:
    """Return what happened to the pod around that time, one line each."""
    at = broken.at or record.ended
    lines = [text for when, text in sorted(_happenings(record, broken.pod)) if at - BEFORE <= when <= at + AFTER]
    return "\n".join([f"{broken.promise}: {broken.sentence}", *(f"  {line}" for line in lines)])


def _happenings(record: Record, pod: str) -> Iterator[tuple[float, str]]:
    happenings = chain(
        ((fault.at, str(fault)) for fault in record.faults),
        *(_of_pod(each) for each in record.pods if each.uid == pod),
        *(_of_request(each) for each in record.requests if each.pod == pod),
        *(_of_instance(each) for each in record.instances if each.pod == pod),
    )
    for at, text in happenings:
        yield at, f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at * 10) % 10}  {text}"


def _of_pod(pod: Pod) -> Iterator[tuple[float, str]]:
    yield from ((at, f"{pod.name} is {'ready' if ready else 'not ready'}") for at, ready in pod.ready)
    yield from ((at, f"{pod.name}/{container} has the image {image}") for at, container, image in pod.images)


def _of_request(request: Request) -> Iterator[tuple[float, str]]:
    yield request.created, f"{request.name} is created for {', '.join(request.containers)}"
    yield from ((at, f"{request.name}/{name} isKilled") for name, at in request.killed.items())
    yield from ((at, f"{request.name}/{name} is {phase}") for name, (phase, at) in request.phases.items())
    ends = ((request.completed, "is Completed"), (request.deleting, "is deleted"), (request.gone, "is gone"))
    yield from ((at, f"{request.name} {what}") for at, what in ends if at is not None)


def _of_instance(instance: Instance) -> Iterator[tuple[float, str]]:
    name = f"{instance.container} ({instance.id[:12]})"
    yield instance.started, f"{name} is started"
    yield from ((each.at, f"{name} writes: {each.word} {each.value}".rstrip()) for each in instance.lines)
    if instance.ended is not None:
        yield instance.ended, f"{name} has ended"
