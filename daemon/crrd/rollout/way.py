"""The way in which a new run restarts containers: by requests, which node daemons carry out, or by patches of the pods.

A run has one way, which its requests record. It does not change in the middle.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from crrd.core.api.types import GROUP, MANAGERS, NODE_DAEMONS, PLURAL
from crrd.core.doctor.facts import read_pod
from crrd.core.rollout.run import Options
from crrd.core.rollout.state import read_node_daemon
from crrd.kube.discovery import serves
from crrd.kube.resources import PODS, REQUESTS, Where
from crrd.kube.rights import missing_rights
from crrd.lib.errors import ApiRefusedError, ConfigurationError, ExpiredError
from crrd.lib.jsonfields import text, value_at
from crrd.rollout.kept import may_list_requests
from crrd.rollout.refusals import lacks_right
from crrd.rollout.session import Session, Via
from crrd.rollout.target import Aim

_CREATE = f"create {PLURAL}.{GROUP}"


async def with_way(session: Session, aim: Aim) -> tuple[Session, str]:
    """Return the session with the run's way in its options, and why it restarts by patches; "" if it does not.

    Raises ConfigurationError if the options need the other way.
    """
    command = session.command
    check_way(command.options)
    if command.via is Via.PATCH:
        check_way(replace(command.options, patch=True))
    elif command.via is Via.DAEMON or _needs_daemon(command.options):
        return session, ""
    why = "as --via says" if command.via is Via.PATCH else await _why_patch(session, aim)
    if not why:
        return session, ""
    changed = replace(command, options=replace(command.options, patch=True))
    return replace(session, command=changed), why


def check_way(options: Options) -> None:
    """Raise ConfigurationError if a run has an option that does not fit to its way."""
    if options.whole_pod and options.ordered:
        why = "kubelet stops and starts the containers of a whole pod in its own order"
        raise ConfigurationError(f"--ordered cannot be used with --whole-pod: {why}")
    if options.patch and (flag := _needs_daemon(options)):
        raise ConfigurationError(f"{flag} needs the node daemon, so a run by patches cannot have it")


def _needs_daemon(options: Options) -> str:
    """Return the first flag that only node daemons serve, "" for none."""
    flags = {
        "--image": options.image is not None,
        "--whole-pod": options.whole_pod,
        "--reload": options.reload,
        "--unready-grace": options.unready_grace is not None,
    }
    return next((flag for flag, given in flags.items() if given), "")


async def _why_patch(session: Session, aim: Aim) -> str:
    """Return why node daemons cannot serve a run on this target, "" if they can."""
    client, namespace = session.client, session.namespace
    if not await may_list_requests(client, namespace):
        if not await serves(client, REQUESTS):
            return "crrd is not installed in this cluster"
        return f"you may not list ContainerRecreateRequests in namespace {namespace}"
    missing: tuple[str, ...] = ()
    with suppress(ApiRefusedError):  # without this API, the first request says so
        missing = await missing_rights(client, (_CREATE,), namespace)
    if missing:
        return f"you may not create ContainerRecreateRequests in namespace {namespace}"
    try:
        daemons = (await client.list_all(PODS, read_node_daemon, label_selector=NODE_DAEMONS)).items
    except ApiRefusedError as error:
        if not lacks_right(error):
            raise
        return ""  # then nobody knows better
    if not daemons:  # another program serves the requests, unless crrd's manager needs no node daemons
        managers = (await client.list_all(PODS, read_pod, label_selector=MANAGERS)).items
        return "crrd has no node daemons in this cluster" if any(each.patches for each in managers) else ""
    where = Where(namespace=namespace, label_selector=aim.pods_query, field_selector=aim.pods_fields)
    nodes, served = set[str](), {each.node for each in daemons}
    try:
        async for page in client.list_pages(PODS, **where):  # one that has a served node is enough
            nodes |= {*map(_node, page.items)} - {""}
            if nodes & served:
                return ""
    except ExpiredError:
        nodes = {*(await client.list_all(PODS, _node, **where)).items} - {""}
    return f"no node of its pods has a node daemon, for example {min(nodes)}" if nodes and not nodes & served else ""


def _node(pod: Mapping[str, Any]) -> str:
    return text(value_at(pod, "spec.nodeName"))
