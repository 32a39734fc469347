"""What the daemon remembers: searches its objects for the names of ended requests and pods.

Memories of limited size are skipped (an OrderedDict that drops its oldest, a deque with a length), because they keep a
late response from reviving a request. So are the records of metrics, which are counted in total, and a name in a
variable of a running function, because it is only one.
"""

import asyncio
import gc
import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

_PLAIN = (dict, list, tuple, set, frozenset, deque, types.MappingProxyType, types.CellType)


def remembered(tasks: Iterable[asyncio.Task[Any]], names: set[str]) -> tuple[str, int]:
    """Return the place of one of the names in the objects that the tasks reach ("" if none), and the object count."""
    coroutines = [task.get_coro() for task in tasks]
    seen: set[int] = set()
    todo: list[tuple[Any, tuple[str, ...]]] = [(one, (getattr(one, "__qualname__", "?"),)) for one in coroutines]
    while todo:
        found, path = todo.pop()
        if isinstance(found, str):
            if found in names or found.partition("://")[2] in names:
                return f"{found} in {' > '.join(path)}", len(seen)
            continue
        if id(found) in seen or not _ours(found):
            continue
        seen.add(id(found))
        todo += [(next_one, (*path, name)) for name, next_one in _parts(found)]
    return "", len(seen)


def _ours(found: Any) -> bool:
    if isinstance(found, OrderedDict) or (isinstance(found, deque) and found.maxlen is not None):
        return False
    if isinstance(
        found, (*_PLAIN, types.FunctionType, types.MethodType, types.CoroutineType, types.AsyncGeneratorType)
    ):
        return True
    kind = type(found)
    return kind.__module__.startswith("crrd.") and kind.__name__ not in ("Ledger", "CallMetrics", "NodeMetrics")


def _parts(found: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(found, types.FunctionType):
        return [("closure", cell) for cell in found.__closure__ or ()]
    if isinstance(found, dict):
        return [*(("key", key) for key in found), *((str(key)[:20], value) for key, value in found.items())]
    if isinstance(found, (types.CoroutineType, types.AsyncGeneratorType)):
        frame = found.cr_frame if isinstance(found, types.CoroutineType) else found.ag_frame
        waits = found.cr_await if isinstance(found, types.CoroutineType) else found.ag_await
        own = frame.f_locals.items() if frame is not None else ()
        return [*((name, part) for name, part in own if not isinstance(part, str)), ("await", waits)]
    name = type(found).__name__
    return [(name, part) for part in gc.get_referents(found) if not isinstance(part, type)]
