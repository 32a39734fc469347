"""What pull pods request, and which LimitRanges of a namespace refuse that.

Requests equal limits, because a LimitRange can limit their ratio. Its other bounds, and those of quotas, differ between
namespaces, so users can set other values.
"""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from crrd.lib.jsonfields import items, mapping, mapping_at, name_of, text

PULL_RESOURCES = "cpu=10m,memory=32Mi"
RESOURCES = ("cpu", "memory", "ephemeral-storage")
QUANTITY = r"[1-9][0-9]{0,8}(m|k|M|G|Ki|Mi|Gi)?"
"""A regular expression. Zero would mean no limit."""
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?)([A-Za-z]{0,2})", re.ASCII)
_SUFFIXES = {
    **{suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), start=-3)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def read_resources(given: str) -> str:
    """Check a text like `cpu=50m,memory=64Mi`, or "". Raises ValueError with a description of valid values."""
    parts = [each.partition("=") for each in given.split(",") if given]
    sound = all(name in RESOURCES and re.fullmatch(QUANTITY, quantity) for name, _, quantity in parts)
    if not sound or len({name for name, _, _ in parts}) < len(parts):
        raise ValueError(f"quantities of {', '.join(RESOURCES)}, for example cpu=50m,memory=64Mi")
    return given


def resources_of(given: str) -> dict[str, str]:
    """Return what a pull pod requests, by resource. `given` is as in `Options.pull_resources`."""
    parts = (each.partition("=") for each in f"{PULL_RESOURCES},{given}".split(","))
    return {name: quantity for name, _, quantity in parts if name in RESOURCES}


def refused_by(given: str, limit_ranges: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the LimitRanges that refuse a pull pod. `given` is as in `Options.pull_resources`.

    The API server does not name them. As kube-apiserver's admission plugin LimitRanger, for a pod with one container.
    """
    requested = resources_of(given)
    return tuple(name_of(each) for each in limit_ranges if _refuses(each, requested))


def _refuses(limit_range: Mapping[str, Any], requested: Mapping[str, str]) -> bool:
    for limit in map(mapping, items(mapping_at(limit_range, "spec").get("limits"))):
        least, most = mapping(limit.get("min")), mapping(limit.get("max"))
        for name, quantity in requested.items() if limit.get("type") in ("Container", "Pod") else ():
            value, low, high = map(_value, (quantity, least.get(name), most.get(name)))
            if value is not None and ((low is not None and value < low) or (high is not None and value > high)):
                return True
    return False


def _value(quantity: object) -> Fraction | None:
    """Return the value of a quantity, None if there is none, or it has another form."""
    found = _NUMBER.fullmatch(text(quantity))
    return Fraction(found[1]) * _SUFFIXES[found[2]] if found is not None and found[2] in _SUFFIXES else None
