"""JSON merge patch, RFC 7386. Neither argument is changed; unchanged parts of the target are shared, not copied."""

from typing import Any


def merge_patch(target: Any, patch: Any) -> Any:
    """The target with the patch applied: objects merge, null removes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result
