"""What a pod with a request waits for, from its status and kubelet's events, and a command that shows more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crrd.core.api.pod import PodContainer
from crrd.core.api.reasons import Reason
from crrd.core.api.time import format_duration, parse_time
from crrd.core.api.types import Pin
from crrd.core.recreate.messages import LATER_STEPS, held_back
from crrd.core.rollout.state import Member, ProbeFailure, RunRequest, World
from crrd.lib.jsonfields import mapping, text

_CHARACTERS = 200  # Most characters of a probe's output, which may be a whole page
_STILL_TRUE = (Reason.NOT_BACK, Reason.POD_RESTARTING)
"""Reasons in a request that still apply when the next instance runs, and that the pod's status does not have."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a pod or a run waits for."""

    why: str = ""
    command: str = ""  # A command that shows more; "" for none
    topic: str = ""  # `why` without its duration; "" if it has none

    @property
    def with_command(self) -> str:
        """`why`, followed by the command."""
        return f"{self.why} ({self.command})" if self.command else self.why


NO_WAIT = Wait()


def wait_for(world: World, member: Member, asked: RunRequest, names: Iterable[str], now: datetime) -> Wait:
    """Return what the first waiting one of these containers waits for; an empty Wait if none waits, or it is unknown.

    The pod's status has priority over the request's message, which may be about an instance that has ended since.
    """
    old = {each.name: each.context.container_id for each in asked.request.containers if each.context is not None}
    for name in names:
        container, state = member.pod.containers.get(name, PodContainer(name)), asked.request.status.state(name)
        is_next = container.running and container.container_id != old.get(name)
        if is_next and not container.ready:
            return _not_ready(world, member, container, now)
        if message := held_back(container):
            crashes = container.waiting_reason == "CrashLoopBackOff"
            return Wait(f"{name}: {message}", f"{_logs(member, name)} --previous" if crashes else describe_pod(member))
        if state.message and not state.phase.final and (not is_next or state.reason in _STILL_TRUE):
            return Wait(state.message)
    return NO_WAIT


def _not_ready(world: World, member: Member, container: PodContainer, now: datetime) -> Wait:
    """Return the wait for a new instance that runs: how long it has been unready, and its probe's last message."""
    started = parse_time(container.started_at)
    since = max((at for at in (started, None if member.ready else member.ready_since) if at is not None), default=now)
    seconds = (now - since).total_seconds()
    if seconds < LATER_STEPS[0]:
        return NO_WAIT
    probe = world.probes.get((member.pod.uid, container.name))
    why = f"its {'readiness' if container.started else 'startup'} probe has not succeeded yet"
    if probe is not None and (started is None or probe.at >= started):
        why = probe.message
    head = f"container {container.name} ({Pin(container.container_id).bare_id[:12]}) is running, but not ready"
    logs = _logs(member, container.name)
    return Wait(f"{head} for {format_duration(seconds)}: {why}", logs, f"{head}: {why}")


def _logs(member: Member, container: str) -> str:
    return f"kubectl logs {member.pod.name} -c {container} -n {member.pod.namespace}"


def describe_pod(member: Member) -> str:
    """Return the command that shows a pod."""
    return f"kubectl describe pod {member.pod.name} -n {member.pod.namespace}"


def read_probe_failure(obj: Mapping[str, Any]) -> tuple[tuple[str, str], ProbeFailure] | None:
    """Return pod UID, container and message of kubelet's event `Unhealthy`; None if the event is malformed."""
    involved = mapping(obj.get("involvedObject"))
    container = text(involved.get("fieldPath")).partition("{")[2].removesuffix("}")
    times = (obj.get("lastTimestamp"), obj.get("eventTime"), mapping(obj.get("metadata")).get("creationTimestamp"))
    at = next((moment for moment in map(parse_time, map(text, times)) if moment is not None), None)
    message = " ".join(text(obj.get("message")).split())
    if at is None or not container or not message:
        return None
    key = (text(involved.get("uid")), container)
    return key, ProbeFailure(message[0].lower() + message[1:_CHARACTERS], at)
