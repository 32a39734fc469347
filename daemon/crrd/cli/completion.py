"""`crrd completion`, and the completion of `kubectl recreate` for shells and kubectl.

`complete` prints the candidates for the last word, one per line, and then a directive, as kubectl expects it from
plugins (cobra's ShellCompDirective). It prints no candidates after an error.
"""

import argparse
import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import Any, TypeVar, Unpack

from crrd.cli import recreate
from crrd.cli.connection import overrides_of
from crrd.core.api.pod import parse_pod
from crrd.core.rollout.run import LABEL_RUN
from crrd.kube.access.config import find_access
from crrd.kube.client import KubeClient
from crrd.kube.discovery import KNOWN, find_kind
from crrd.kube.resources import NAMESPACES, PODS, REQUESTS, Resource, Where
from crrd.lib.errors import CrrdError
from crrd.lib.formats import FORMATS
from crrd.lib.jsonfields import mapping, name_of, text
from crrd.lib.log import configure as configure_log
from crrd.rollout.target import find_target, split_targets

T = TypeVar("T")
Json = Mapping[str, Any]
_SECONDS = 10.0
_DRY_RUNS = ("--dry-run=client", "--dry-run=server")  # Of flags with their value, only these are worth a line

_BASH = """\
_crrd_recreate() {
    local words=() word space last=-1 line="$COMP_LINE"
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do  # bash parts words at = and :, also without a space
        if [ "$word" ]; then space="${line%%"$word"*}"; else space="$line"; fi
        line="${line#"$space$word"}"
        if [ "$space" ] || [ $last -lt 0 ]; then words+=("$word"); last=$((last + 1)); else words[last]+="$word"; fi
    done
    local typed="${words[last]%"${word#[=:]}"}"
    words=("${words[@]:1}")
    [ "${COMP_WORDS[0]##*/}" = crrd ] && { [ "${words[0]}" = recreate ] || return; words=("${words[@]:1}"); }
    local IFS=$'\\n'
    COMPREPLY=($(kubectl_complete-recreate "${words[@]}" 2>/dev/null | grep -v '^:'))
    COMPREPLY=("${COMPREPLY[@]#"$typed"}")
    case "${COMPREPLY[0]}" in */) compopt -o nospace ;; esac
}
complete -F _crrd_recreate kubectl-recreate crrd
"""
_ZSH = """\
_crrd_recreate() {
    local -a given found
    given=("${(@)words[2,$CURRENT]}")
    if [[ ${words[1]:t} == crrd ]]; then
        [[ $given[1] == recreate ]] || return
        given=("${(@)given[2,-1]}")
    fi
    found=("${(@f)$(kubectl_complete-recreate "${(@)given}" 2>/dev/null | grep -v '^:')}")
    compadd -Q -- ${(@)found:#*/}
    compadd -Q -S '' -- ${(M)found:#*/}
}
compdef _crrd_recreate kubectl-recreate crrd
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Prints a script that makes the shell complete `crrd recreate` and `kubectl-recreate`. kubectl's own\n"
        "completion does not need this: it runs the program kubectl_complete-recreate."
    )
    parser.epilog = "examples:\n  source <(crrd completion bash)\n  source <(crrd completion zsh)"
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(_BASH if args.shell == "bash" else _ZSH, end="")
    return 0


def complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word."""
    *before, unfinished = words or [""]
    configure_log("console", "error")
    offers: list[str] = []
    with suppress(CrrdError, TimeoutError, OSError, SystemExit):
        offers = asyncio.run(asyncio.wait_for(_offers(before, unfinished), _SECONDS))
    fitting = sorted({each for each in offers if each.startswith(unfinished)})
    # Bits of ShellCompDirective: no file names, and no space after a candidate that can be continued with a name.
    print(*fitting, ":6" if any(each.endswith("/") for each in fitting) else ":4", sep="\n")
    return 0


async def _offers(before: list[str], unfinished: str) -> list[str]:
    """Return the candidates for the unfinished word. The caller drops those that do not start with it."""
    last = before[-1] if before else ""
    flag = recreate.find_flag(last)
    if flag is not None and flag.choices is not None:
        return list(flag.choices)
    if flag is not None and flag.dest == "output":
        return [*FORMATS]
    last = last if flag is not None else ""
    parser = argparse.ArgumentParser()
    recreate.configure(parser)
    with redirect_stderr(StringIO()):
        given, _ = parser.parse_known_args(recreate.arranged(before[:-1] if last else before))
    if unfinished.startswith("-"):
        return [flag for flag in recreate.flags_of(given.verb) if "=" not in flag or flag in _DRY_RUNS]
    access = find_access(given.kubeconfig, os.environ, overrides_of(given))
    async with KubeClient(access) as client:
        namespace = given.namespace or (await access.current()).namespace or "default"
        return await _from_api(client, namespace, given, last, unfinished)


async def _from_api(
    client: KubeClient, namespace: str, given: argparse.Namespace, last: str, unfinished: str
) -> list[str]:
    """Return the candidates that come from the API server. `last` is the flag whose value is typed, or ""."""
    targets: list[str] = [] if given.verb else given.targets
    if last in ("-n", "--namespace"):
        return await _list(client, NAMESPACES, name_of)
    if last in ("-c", "--container"):
        *some, _ = unfinished.split(",")
        names: set[str] = set()
        for target in split_targets(tuple(targets)):  # all pods of the namespace if there is none
            aim = await find_target(client, namespace, target, "")
            where = Where(namespace=namespace, label_selector=aim.pods_query, field_selector=aim.pods_fields)
            names.update(*await _list(client, PODS, _containers, **where))
        return [",".join([*some, name]) for name in names if name not in some]
    if last:
        return []
    if given.verb:
        if given.run_name:
            return []
        return await _list(client, REQUESTS, _run_name, namespace=namespace, label_selector=LABEL_RUN)
    if any("/" not in target for target in targets):
        return []
    kind, slash, _ = unfinished.partition("/")
    if slash:
        served = await find_kind(client, kind)
        return [f"{kind}/{name}" for name in await _list(client, served.resource, name_of, namespace=namespace)]
    return [*([] if targets else recreate.VERBS), *(f"{served.kind.lower()}/" for served in KNOWN)]


async def _list(client: KubeClient, resource: Resource, read: Callable[[Json], T], **where: Unpack[Where]) -> list[T]:
    return list((await client.list_all(resource, read, **where)).items)


def _run_name(request: Json) -> str:
    return text(mapping(mapping(request.get("metadata")).get("labels")).get(LABEL_RUN))


def _containers(pod: Json) -> list[str]:
    return list(parse_pod(pod).recreatable)
