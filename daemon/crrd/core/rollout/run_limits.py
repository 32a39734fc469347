"""The limits of a run that were changed after it began, in an annotation of their own.

What a request says of its run stays as its creator has written it (policy crrd-admission). So whoever continues a run
with their own rights knows who has written what it does. Its limits can be changed, by `resume`.
"""

import json
from dataclasses import replace

from crrd.core.rollout.run import STORED_VERSION, Options, Run, Target, read_amount
from crrd.lib.jsonfields import mapping, number, text

ANNOTATION_LIMITS = "crr.apps.kruise.io/run-limits"  # The changed limits, as JSON
LIMITS = (
    *("max_unavailable", "max_per_node", "max_per_zone", "min_ready", "ordered", "unready_grace", "pod_timeout"),
    *("max_failures", "force", "allow_pod_restart", "preflight", "reason", "pull_resources"),
)
"""The options that `resume` can change."""


def limits_annotation(run: Run) -> dict[str, str]:
    """Return the annotation with the limits of a run, as `with_limits` reads it."""
    limits = {name: getattr(run.options, name) for name in LIMITS}
    if not run.options.pull_resources:
        del limits["pull_resources"]  # older versions do not know it
    limits["max_unavailable"] = str(run.options.max_unavailable)
    shape = {"version": STORED_VERSION, "revision": run.revision, "limits": limits}
    return {ANNOTATION_LIMITS: json.dumps(shape, sort_keys=True, separators=(",", ":"))}


def with_limits(run: Run, annotation: str) -> Run:
    """Return the run of a request with the limits of its annotation, if they are newer and valid."""
    try:
        shape = mapping(json.loads(annotation))
        limits = dict(mapping(shape.get("limits")))
        if "max_unavailable" in limits:
            limits["max_unavailable"] = read_amount(text(limits["max_unavailable"]))
    except (ValueError, RecursionError):
        return run
    revision = number(shape.get("revision"))
    is_later = number(shape.get("version")) > STORED_VERSION
    if is_later or revision <= run.revision or not limits.keys() <= {*LIMITS}:
        return run
    options = replace(run.options, **limits)
    sound = fits(replace(options, image=None), Options(())) and options.has_valid_numbers
    return replace(run, options=options, revision=revision) if sound else run


def fits(found: Target | Options, plain: Target | Options) -> bool:
    """Whether each field has the same type as in a default value of the class."""
    for name in plain.__slots__:
        value, like = getattr(found, name), getattr(plain, name)
        allowed = (int, type(None)) if like is None else type(like)
        if not isinstance(value, allowed) or (isinstance(value, bool) and not isinstance(like, bool)):
            return False
    return True
