"""ContainerRecreatePolicies in place of the annotations of Stakater Reloader (docs/from-reloader.md).

`convert` decides from workloads as JSON which policy does what their annotations ask of Reloader, and says what no
policy does. The annotations mean what Reloader 1.4 does with them (`ShouldReload` and `upgradeResource` in its source).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from itertools import count as numbers
from typing import Any

from crrd.core.api.time import parse_duration
from crrd.core.config.references import Kind
from crrd.core.config.uses import OutOfReach, of_platform, references, unreached
from crrd.core.policy.golang import TRUE, read_expression, read_seconds
from crrd.core.policy.types import API_VERSION, KIND
from crrd.core.rollout.run import read_amount
from crrd.lib.jsonfields import mapping, mapping_at, text, value_at

Json = Mapping[str, Any]
Marked = tuple[str, Kind, str]  # Namespace, kind and name of a ConfigMap or Secret
_HOST = "reloader.stakater.com"
_AUTO, _SEARCH, _MATCH, _IGNORE = (f"{_HOST}/{word}" for word in ("auto", "search", "match", "ignore"))
_PAUSE, _PAUSED_AT = f"deployment.{_HOST}/pause-period", f"deployment.{_HOST}/paused-at"
_STRATEGY = f"{_HOST}/rollout-strategy"
_CLASSES = f"secretproviderclass.{_HOST}"
_WORDS = {Kind.CONFIG_MAP: "configmap", Kind.SECRET: "secret"}
_NAME = re.compile(r"[a-z0-9.-]+", re.ASCII)
_LONGEST_NAME, _MOST_IGNORED = 253, 64  # By the schema of policies
_NO_COUNTERPART = {
    "CronJob": "Reloader starts a Job of it after a change, and a policy only restarts containers that run. The next "
    "Job gets the new data anyway",
    "Job": "Reloader creates it again after a change, and a policy only restarts containers that run",
    "DeploymentConfig": "a policy cannot name it in targetRef. Write a policy with the pods' labels in spec.selector",
}
"""Kinds that Reloader reloads (DeploymentConfigs: an older Reloader), and policies do not."""
_BY_DRIVER = "Let the CSI driver sync it to a Secret that a container uses, or add schedule or maxAge to the policy"


@dataclass(frozen=True, slots=True)
class Marks:
    """The ConfigMaps and Secrets that have annotations of Reloader."""

    matched: frozenset[Marked] = frozenset()  # By workloads that search
    ignored: frozenset[Marked] = frozenset()


@dataclass(frozen=True, slots=True)
class Advice:
    """What a workload with annotations of Reloader gets."""

    namespace: str
    kind: str
    name: str
    policy: Mapping[str, Any] | None = None  # As JSON; None if no policy does what the annotations ask for
    notes: tuple[str, ...] = ()  # What to know or do about it, as sentences without a full stop

    @property
    def workload(self) -> str:
        """The workload, for messages."""
        return f"{self.kind} {self.name} in namespace {self.namespace}"

    @property
    def secrets(self) -> bool:
        """Whether the policy counts Secrets."""
        return value_at(self.policy, "spec.triggers.configChange.secrets") is True


def read_marks(objects: Iterable[tuple[Kind, Json]]) -> Marks:
    """Return the objects that are marked, from their JSON, which may have metadata only."""
    found = [(_marked(kind, obj), _annotations(obj)) for kind, obj in objects]
    return Marks(*(frozenset(key for key, given in found if given.get(word) == "true") for word in (_MATCH, _IGNORE)))


def convert(workloads: Iterable[Json], marks: Marks, *, auto_all: bool = False) -> tuple[Advice, ...]:
    """Return advice for each workload with annotations, by namespace, kind and name.

    The workloads must have `kind` and `apiVersion`. `auto_all`: Reloader runs with --auto-reload-all.
    """
    every = list(workloads)
    rollouts = {_template_of(each): each for each in every}
    found = [each for workload in every for each in _advise(workload, rollouts, marks, auto_all)]
    return tuple(_named(sorted(found, key=lambda each: (each.namespace, each.kind, each.name))))


def _template_of(workload: Json) -> tuple[str, ...]:
    """Return the namespace, kind and name of the workload whose pod template an Argo Rollout uses."""
    place = (text(value_at(workload, f"spec.workloadRef.{field}")) for field in ("kind", "name"))
    return _place(workload)[0], *place


def _named(advice: Iterable[Advice]) -> Iterator[Advice]:
    """Yield the advice. Where several workloads have one name, the names of their policies have the kind, too."""
    every = list(advice)
    count = Counter((each.namespace, each.name) for each in every if each.policy is not None)
    taken = {key for key, number in count.items() if number == 1}
    for each in every:
        if each.policy is None or count[each.namespace, each.name] == 1:
            yield each
            continue
        endings = (f"-{each.kind.lower()}{more}" for more in chain([""], (f"-{number}" for number in numbers(2))))
        names = (each.name[: _LONGEST_NAME - len(ending)].rstrip("-.") + ending for ending in endings)
        name = next(name for name in names if (each.namespace, name) not in taken)
        taken.add((each.namespace, name))
        yield replace(each, policy={**each.policy, "metadata": {**each.policy["metadata"], "name": name}})


@dataclass(frozen=True, slots=True)
class _Rules:
    """Which objects of one kind reload a workload."""

    kind: Kind
    auto: bool  # All that it uses
    searches: bool  # Those that are marked
    names: tuple[str, ...]  # Regular expressions
    excluded: frozenset[str]

    @property
    def asks(self) -> bool:
        """Whether any object could reload it."""
        return self.auto or self.searches or bool(self.names)

    def counts(self, marked: Marked, marks: Marks) -> bool:
        """Whether a change of an object that the workload uses reloads it."""
        name = marked[2]
        if marked in marks.ignored or name in self.excluded:
            return False
        return self.auto or (self.searches and marked in marks.matched) or any(_fits(each, name) for each in self.names)


def _fits(pattern: str, name: str) -> bool:
    """Whether an expression names an object. One that cannot be read names all, as a note says."""
    found = read_expression(pattern)
    return found is None or found.search(name) is not None


def _rules(kind: Kind, own: Json, of_template: Json, auto_all: bool) -> _Rules:
    word = _WORDS[kind]
    reload, typed = f"{word}.{_HOST}/reload", f"{word}.{_HOST}/auto"
    given = own if own.keys() & {reload, typed, _AUTO, _SEARCH} else of_template
    auto = (text(given.get(_AUTO)), text(given.get(typed)))
    return _Rules(
        kind,
        auto=any(each in TRUE for each in auto) or (auto_all and auto == ("", "")),
        searches=given.get(_SEARCH) == "true",
        names=_listed(given.get(reload)),
        excluded=frozenset(_listed(own.get(f"{word}s.exclude.{_HOST}/reload"))),
    )


def _listed(given: object) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in text(given).split(","))))


def _advise(workload: Json, rollouts: Mapping[tuple[str, ...], Json], marks: Marks, auto_all: bool) -> Iterator[Advice]:
    """Yield what a workload gets, nothing if Reloader does nothing for it. `rollouts`: by `_template_of`."""
    kind, namespace, name = text(workload.get("kind")), *_place(workload)
    template = mapping_at(workload, "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template")
    own, of_template = _annotations(workload), _annotations(template)
    rules = {each: _rules(each, own, of_template, auto_all) for each in _WORDS}
    asked = {**of_template, **own}
    if not (any(each.asks for each in rules.values()) or _asks_for_classes(asked)):
        return
    advice = Advice(namespace, kind, name)
    if kind in _NO_COUNTERPART:
        if any(_HOST in key for key in asked):  # With --auto-reload-all, most Jobs need no line
            yield replace(advice, notes=(_NO_COUNTERPART[kind],))
        return
    if not template:
        yield replace(advice, notes=("its pod template is in another object. Write a policy for it by hand",))
        return
    uses, rollout = _Uses(template, namespace, marks, rules), rollouts.get((namespace, kind, name))
    notes = (*uses.notes, *_notes_on(own, asked, kind), *_notes_of_strategy(workload))
    if uses.counted and len(uses.ignored) > _MOST_IGNORED:
        why = f"it would ignore {len(uses.ignored)} objects, and a policy takes {_MOST_IGNORED} names"
        yield replace(advice, notes=(f"{why}. Write a policy by hand for the containers that share few", *notes))
    elif uses.counted:
        of = rollout or workload
        target = {"apiVersion": text(of.get("apiVersion")), "kind": text(of.get("kind")), "name": _place(of)[1]}
        if rollout is not None:
            notes = (f"its pods are those of {target['kind']} {target['name']}, so the policy names that one", *notes)
        change, budget = {**uses.change, **_settle(own, kind)}, _budget(of)
        spec = {"targetRef": target, "triggers": {"configChange": change}, **budget}
        meta = {"name": name, "namespace": namespace}
        policy = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}
        yield replace(advice, policy=policy, notes=notes)
    elif any(_HOST in key for key in asked):
        why = "its containers use no ConfigMap or Secret whose changes would reload it"
        yield replace(advice, notes=(why, *notes))


class _Uses:
    """What the containers of a pod template use, and what of it counts."""

    def __init__(self, template: Json, namespace: str, marks: Marks, rules: Mapping[Kind, _Rules]) -> None:
        used = {each.object for uses in references(template, with_init=True).values() for each in uses}
        self.counted = {each for each in used if rules[each[0]].counts((namespace, *each), marks)}
        self._rest, self._rules = used - self.counted, rules
        self._unreached, self._of_platform = unreached(template), of_platform(template)

    @property
    def change(self) -> dict[str, Any]:
        """The trigger configChange, without `settle`."""
        return {
            **({"secrets": True} if self._secrets else {}),
            **({"ignore": list(self.ignored)} if self.ignored else {}),
            **({"allowPodRestart": True} if self._of_init else {}),
        }

    @property
    def notes(self) -> Iterator[str]:
        """What to know about it."""
        if both := sorted({name for _, name in self._rest_of_kinds} & self._names):
            yield f"a ConfigMap and a Secret are called {', '.join(both)}. For a policy, both count or none"
        if self._of_init:
            objects = ", ".join(self._of_init)
            yield f"only init containers use {objects}. Changes restart whole pods in place, which needs node daemons"
        for kind, rules in self._rules.items():
            for each in rules.names:
                if read_expression(each) is None:
                    yield f"only Go can read the expression {each!r}, so all {kind}s count. Check ignore"
                elif _NAME.fullmatch(each) is None:
                    yield f"the expression {each!r} is applied to the {kind}s that the containers use now"
                elif (kind, each) in self._of_platform:
                    continue
                elif not any(_fits(each, name) for found, name in self.counted | self._rest if found is kind):
                    yield f"no container uses {kind} {each}, so a policy does not see its changes"
        if found := sorted(each for each in self._of_platform if self._rules[each[0]].asks):
            names = ", ".join(f"{kind} {name}" for kind, name in found)
            yield f"{names}: the platform puts it into every namespace, so its changes do not count for a policy"
        if any(rules.auto for rules in self._rules.values()):
            for name in sorted({each.name for each in self._unreached if each.why is OutOfReach.CSI_DRIVER}):
                yield f"no policy sees changes of SecretProviderClass {name}. {_BY_DRIVER}"

    @property
    def _secrets(self) -> bool:
        return any(kind is Kind.SECRET for kind, _ in self.counted)

    @property
    def _names(self) -> set[str]:
        return {name for _, name in self.counted}

    @property
    def _rest_of_kinds(self) -> set[tuple[Kind, str]]:
        """What must not count although its kind does."""
        return {each for each in self._rest if each[0] is Kind.CONFIG_MAP or self._secrets}

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of it, and of what is not used yet as far as there is room."""
        used = {name for _, name in self._rest_of_kinds} - self._names
        kinds = [kind for kind in _WORDS if kind is Kind.CONFIG_MAP or self._secrets]
        listed = {name for kind in kinds for name in self._rules[kind].excluded} - self._names
        return tuple(sorted({*used, *sorted(listed - used)[: max(0, _MOST_IGNORED - len(used))]}))

    @property
    def _of_init(self) -> list[str]:
        """The objects that count, and that only init containers use."""
        found = {(each.kind, each.name) for each in self._unreached if each.of_init}
        return [f"{kind} {name}" for kind, name in sorted(found & self.counted)]


def _settle(own: Json, kind: str) -> dict[str, str]:
    """Return for how long a policy waits for more changes."""
    given = text(own.get(_PAUSE))
    seconds = read_seconds(given) if kind == "Deployment" else None
    if not seconds:
        return {}
    return {"settle": given if parse_duration(given) == seconds else f"{seconds}s"}


def _budget(workload: Json) -> dict[str, Any]:
    """Return the budget: what the workload's rolling update allows, if it allows any pod to be unavailable."""
    field = "updateStrategy" if workload.get("kind") in ("DaemonSet", "StatefulSet") else "strategy"
    most = value_at(workload, f"spec.{field}.rollingUpdate.maxUnavailable")
    try:
        read_amount(str(most))
    except ValueError:
        return {}
    return {"budget": {"maxUnavailable": most}}


def _notes_on(own: Json, asked: Json, kind: str) -> Iterator[str]:
    """Yield notes on annotations that have no counterpart, or one that differs."""
    pause = text(own.get(_PAUSE))
    if _PAUSE in own and kind != "Deployment":
        yield f"{_PAUSE} is only for Deployments, so Reloader ignores it"
    elif _PAUSE in own and read_seconds(pause) is None:
        yield f"{_PAUSE} is {pause!r}, which is no duration, so Reloader reloads nothing. The policy does"
    elif _PAUSE in own and not read_seconds(pause):
        yield f"{_PAUSE} is {pause!r}, which is not positive, so it has no effect"
    elif _PAUSE in own:
        yield "settle counts from the last change, and pause-period counts from the first one"
    if _PAUSED_AT in own:
        yield (
            "Reloader has paused its rollout, and the policy waits for that. Before you remove the annotations, wait "
            f"until {_PAUSED_AT} has gone, or run kubectl rollout resume"
        )
    if _STRATEGY in asked:
        yield f"{_STRATEGY} is not needed, because a policy does not change the template"
    if _asks_for_classes(asked):
        yield f"no policy sees changes of the SecretProviderClasses that {_CLASSES} names. {_BY_DRIVER}"


def _asks_for_classes(asked: Json) -> bool:
    return text(asked.get(f"{_CLASSES}/auto")) in TRUE or bool(_listed(asked.get(f"{_CLASSES}/reload")))


def _notes_of_strategy(workload: Json) -> Iterator[str]:
    """Yield a note if the workload does not replace all pods after the change of its template that Reloader makes."""
    partition = value_at(workload, "spec.updateStrategy.rollingUpdate.partition")
    if value_at(workload, "spec.updateStrategy.type") == "OnDelete":
        yield "its updateStrategy is OnDelete: Reloader restarts nothing until you delete pods, and the policy does"
    elif isinstance(partition, int) and partition > 0:
        yield f"its updateStrategy has partition {partition}: Reloader spares the pods below, and the policy does not"


def _annotations(obj: Json) -> Json:
    return mapping_at(obj, "metadata.annotations")


def _place(obj: Json) -> tuple[str, str]:
    meta = mapping(obj.get("metadata"))
    return text(meta.get("namespace")), text(meta.get("name"))


def _marked(kind: Kind, obj: Json) -> Marked:
    namespace, name = _place(obj)
    return namespace, kind, name
