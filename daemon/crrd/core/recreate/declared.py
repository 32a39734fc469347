"""How a container reloads its files, as the author of its pod declares it: the annotation `reload.crrd.dev/CONTAINER`.

Its JSON has one of `exec`, `httpGet`, `httpPost` and `signal`, and perhaps `timeoutSeconds`. A request names containers
only, and never a command. What counts is what kubelet recorded on the sandbox of the container when it made it, as with
a preStop hook: whoever may change the annotations of a pod later gets no command to run with it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from crrd.core.api.pod import Pod
from crrd.core.api.reasons import Reason
from crrd.core.api.types import ANNOTATION_RELOAD
from crrd.core.recreate.handlers import invalid, read_command, read_http
from crrd.core.recreate.messages import NO_MESSAGE, Message
from crrd.core.recreate.observation import Hook, HookKind, Instance, Sandbox

SIGNALS = ("HUP", "USR1", "USR2")  # With which programs reload. None of them is known as the way to end one
DEFAULT_SECONDS = 30
LONGEST_SECONDS = 600
HANDLERS = ("exec", "httpGet", "httpPost", "signal")
_TIMEOUT = "timeoutSeconds"


@dataclass(frozen=True, slots=True)
class Reload:
    """How a container reloads its files."""

    hook: Hook  # A command or an HTTP request, or an invalid one
    seconds: int = DEFAULT_SECONDS  # How long it may take
    post: bool = False  # Whether the HTTP request is a POST
    signal: str = ""  # The signal that the command sends to process 1

    @property
    def kind(self) -> str:
        """The kind of handler, as in the annotation."""
        if self.signal:
            return "signal"
        return "httpPost" if self.post else self.hook.kind.value


def read_reload(annotation: str) -> Reload:
    """Parse the annotation. What is wrong with it is in `hook.error`, and nothing is raised."""
    try:
        body = json.loads(annotation)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return Reload(invalid("it must be a JSON object"))
    given, seconds = sorted(body.keys() - {_TIMEOUT}), body.get(_TIMEOUT, DEFAULT_SECONDS)
    if len(given) != 1 or given[0] not in HANDLERS:
        return Reload(invalid(f"it must have one of {', '.join(HANDLERS)}, not {', '.join(given) or 'nothing'}"))
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 < seconds <= LONGEST_SECONDS:
        return Reload(invalid(f"its {_TIMEOUT} must be a whole number from 1 to {LONGEST_SECONDS}"))
    kind, handler = given[0], body[given[0]]
    if kind == "exec":
        return Reload(read_command(handler, "its exec"), seconds)
    if kind == "signal":
        if handler not in SIGNALS:
            return Reload(invalid(f"its signal must be one of {', '.join(SIGNALS)}"))
        return Reload(Hook(HookKind.EXEC, ("kill", f"-{handler}", "1")), seconds, signal=handler)
    if not isinstance(handler, dict):
        return Reload(invalid(f"its {kind} must be an object"))
    return Reload(read_http(handler, f"its {kind}"), seconds, post=kind == "httpPost")


def undeclared(pod: Pod, name: str) -> Message:
    """Return why a container of the pod cannot reload by its declaration. Also for admission."""
    annotation, declaration = f"{ANNOTATION_RELOAD}{name}", pod.containers[name].reload
    if not declaration:
        return Message.of(Reason.RELOAD_UNDECLARED, why=f"the pod has no annotation {annotation}")
    reload = read_reload(declaration)
    if reload.hook.kind is HookKind.INVALID:
        return Message.of(Reason.RELOAD_UNDECLARED, why=f"the annotation {annotation} is invalid: {reload.hook.error}")
    if reload.signal and pod.shares_pids:
        why = f"the annotation {annotation} has a signal, but process 1 is not that of the container (hostPID or "
        return Message.of(Reason.RELOAD_UNDECLARED, why=f"{why}shareProcessNamespace)")
    return NO_MESSAGE


def changed_since(pod: Pod, name: str, recorded: Mapping[str, str]) -> Message:
    """Return whether the declaration is another one than kubelet recorded on the sandbox of the container."""
    if recorded.get(name) == pod.containers[name].reload:
        return NO_MESSAGE
    return Message.of(Reason.RELOAD_CHANGED, annotation=f"{ANNOTATION_RELOAD}{name}")


def recorded_for(instance: Instance, sandboxes: Iterable[Sandbox]) -> Mapping[str, str] | None:
    """Return the declarations by container that kubelet recorded on the sandbox of an instance, None if not known."""
    return next((each.reloads for each in sandboxes if each.id == instance.sandbox), None)
