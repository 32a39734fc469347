"""Metrics of Prometheus that must hold after a step: as values, their fields, and their query for some pods."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crrd.core.api.fields import Field, Section, Type
from crrd.core.judge.addresses import read_address
from crrd.lib.jsonfields import Reader

_PLACEHOLDER = re.compile(r"\{\{(pods|namespace)\}\}")
_PODS = "{{pods}}"
_NO_REGEX = re.compile(
    r"""=\s*["'`][^"'`]*\{\{pods\}\}"""
)  # `pod="{{pods}}"`, which is no pod's name once there are two
_NAME = re.compile(r"[-a-z0-9.]+")  # All characters of the names of pods and namespaces
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Metric:
    """A query, and the bounds that each of its values must keep."""

    address: str  # URL of the server, without /api/v1/query
    query: str  # PromQL with placeholders
    low: float | None = None  # The least value that holds
    high: float | None = None  # The greatest value that holds
    baseline: bool = False
    """The bounds are for a difference: the value of the restarted pods minus that of the pods not restarted yet."""
    ca: str = ""  # PEM text of the CAs to trust, "" for those of the system
    token_secret: str = ""  # Name of the Secret with the bearer token, "" for none
    token_key: str = ""  # Its key there
    token_file: str = ""  # A file with the bearer token instead, of the user of a command


def fields(path: str, *, local: bool = False) -> Iterator[Field]:
    """Yield the rows of the table of fields for a metric in the object at `path`; `local`: of a command."""
    own = f"{path}.prometheus"
    about = "A query of Prometheus, at least one bound, and how to reach the server."
    yield Field(Type.OBJECT, own, about, required=True)
    about = (
        "Address of the server, without /api/v1/query, for example https://prometheus.example:9090. The manager asks "
        "only those that its flag --judge-address allows."
    )
    yield Field(Type.STRING, f"{own}.address", about, required=True, low=1, high=2048)
    about = (
        "PromQL. {{pods}} stands for a regular expression of the names of the restarted pods, as in "
        'pod=~"{{pods}}", and {{namespace}} for their namespace. The result must be a number, or a vector of which '
        "each value must hold."
    )
    yield Field(Type.STRING, f"{own}.query", about, required=True, low=1, high=8192)
    yield Field(Type.NUMBER, f"{own}.min", "The least value that holds.")
    yield Field(Type.NUMBER, f"{own}.max", "The greatest value that holds.")
    about = (
        "Ask for the pods that are not restarted yet, too. The bounds are then for the value of the restarted pods "
        "minus that of the others, and the query must give one number."
    )
    yield Field(Type.BOOLEAN, f"{own}.baseline", about, default=False)
    about = "PEM certificates of the CAs to trust. By default, those of the system."
    yield Field(Type.STRING, f"{own}.ca", about, high=16384)
    if local:
        yield Field(Type.STRING, f"{own}.bearerTokenFile", "A file with a bearer token for the server.", high=4096)
        return
    token = f"{own}.bearerTokenSecret"
    yield Field(Type.OBJECT, token, "A Secret in the policy's namespace with a bearer token for the server.")
    yield Field(Type.STRING, f"{token}.name", "Name of the Secret.", required=True, low=1, high=253)
    yield Field(Type.STRING, f"{token}.key", "Key in the Secret.", required=True, low=1, high=253)


_LOCAL = {each.path: each for each in fields("metrics[]", local=True)}


def read_metric(section: Section, *, local: bool = False) -> Metric:
    """Parse a metric from an object with the rows of `fields`. The reader of the section keeps what is wrong."""
    section.reject_unknown()
    own = section.section("prometheus")
    own.reject_unknown()
    address, query, ca = map(own.text, ("address", "query", "ca"))
    low, high, baseline = own.optional_number("min"), own.optional_number("max"), own.flag("baseline")
    secret = None if local else own.optional_section("bearerTokenSecret")
    token_file = own.text("bearerTokenFile") if local else ""
    token_secret, token_key = ("", "") if secret is None else map(secret.text, ("name", "key"))
    if secret is not None:
        secret.reject_unknown()
    try:
        is_tls = read_address(address).scheme == "https"
    except ValueError as error:
        is_tls = True
        own.reject(f"must be {error}", "address")
    for key, given in (("ca", ca), ("bearerTokenSecret", token_secret), ("bearerTokenFile", token_file)):
        if given and not is_tls:
            own.reject("needs an address with https", key)
    if ca and _CERTIFICATE not in ca:
        own.reject(f"must be PEM text with {_CERTIFICATE}", "ca")
    if low is None and high is None:
        own.reject("must have min or max")
    if low is not None and high is not None and low > high:
        own.reject("must not be above max", "min")
    if rule := _broken_rule(query, baseline=baseline):
        own.reject(rule, "query")
    return Metric(address, query, low, high, baseline, ca, token_secret, token_key, token_file)


def _broken_rule(query: str, *, baseline: bool) -> str:
    """Return which rule about placeholders a query breaks, or ""."""
    if found := re.search(r"\{\{[^}]{0,20}\}{0,2}", _PLACEHOLDER.sub(" ", query)):
        return f"has {found[0]!r}, but the only placeholders are {_PODS} and {{{{namespace}}}}"
    if _NO_REGEX.search(query):
        return f'must use {_PODS} as a regular expression, for example pod=~"{_PODS}"'
    return f"must have {_PODS}, because baseline compares pods" if baseline and _PODS not in query else ""


def read_metrics(given: object) -> tuple[Metric, ...]:
    """Parse the metrics of a command: a list of objects. A ValueError says what is wrong."""
    reader, found = Reader(), []
    for at, each in enumerate(reader.items(given, "metrics")):
        found.append(read_metric(Section(_LOCAL, reader, each, "metrics[]", f"metrics[{at}]"), local=True))
    if reader.error:
        raise ValueError(reader.error)
    return tuple(found)


def write_metric(metric: Metric) -> dict[str, Any]:
    """Return a metric as the JSON that `read_metric` reads."""
    secret = {"name": metric.token_secret, "key": metric.token_key} if metric.token_secret else None
    all_fields: Mapping[str, Any] = {
        "address": metric.address,
        "query": metric.query,
        "min": metric.low,
        "max": metric.high,
        "baseline": metric.baseline or None,
        "ca": metric.ca or None,
        "bearerTokenSecret": secret,
        "bearerTokenFile": metric.token_file or None,
    }
    return {"prometheus": {key: value for key, value in all_fields.items() if value is not None}}


def render(query: str, pods: Collection[str], namespace: str) -> str:
    """Return a query for these pods. ValueError if there are none, or if a name is none that Kubernetes knows.

    A dot is escaped as `[.]`, because that needs no backslash, which each kind of quotes of PromQL treats differently.
    """
    if not pods:
        raise ValueError("there are no pods to ask about")
    for name in (*pods, namespace):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a pod or namespace")
    values = {"pods": f"(?:{'|'.join(sorted(pods)).replace('.', '[.]')})", "namespace": namespace}
    return _PLACEHOLDER.sub(lambda found: values[found[1]], query)


def digest_of(metrics: Iterable[Metric]) -> str:
    """Return a digest of what metrics ask, "" for none. How this machine reaches the servers does not count."""
    asked = [write_metric(replace(each, ca="", token_secret="", token_key="", token_file="")) for each in metrics]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16] if asked else ""
