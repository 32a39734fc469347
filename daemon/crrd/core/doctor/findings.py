"""The results of `crrd doctor`, as values. `cli.doctor_sentences` has a sentence for each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # Requests are served, but not correctly, or not on all nodes
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


class Check(StrEnum):
    """The checks, in the order of the output."""

    SERVER = "API server"
    CRD = "CRD"
    WEBHOOKS = "webhooks"
    ADMISSION = "admission"
    POLICIES = "policies"
    MANAGER = "manager"
    DAEMONS = "node daemons"
    RUNTIME = "runtime, kubelet"
    CLOCKS = "clocks"
    RIGHTS = "your rights"
    ACCOUNTS = "crrd's rights"
    OPENKRUISE = "OpenKruise"


Topic = StrEnum(
    "Topic",
    "UNREAD SERVER SERVER_TOO_OLD CRD CRD_MISSING CRD_NOT_SERVED FIELDS_DROPPED "
    "WEBHOOKS OTHER_WEBHOOKS NO_WEBHOOKS NO_CA_BUNDLE WEBHOOK_IGNORED "
    "ADMISSION NOT_ADMITTED ADMISSION_FAILED "
    "POLICIES POLICIES_MISSING POLICIES_UNBOUND "
    "MANAGER OTHER_MANAGER NO_MANAGER MANAGER_DOWN MANAGER_DEGRADED NO_LEADER "
    "DAEMONS NO_DAEMONS DAEMONS_DOWN NODES_WITHOUT NODES_NOT_READY VERSIONS_DIFFER "
    "RUNTIME RUNTIME_UNAVAILABLE KUBELET_SILENT NO_READY_DAEMON "
    "CLOCKS CLOCK_HERE CLOCKS_OF_NODES "
    "RIGHTS RIGHTS_MISSING ACCOUNTS ACCOUNT_LACKS "
    "NO_OPENKRUISE OPENKRUISE_MANAGES TWO_DAEMONS TWO_ADMISSIONS",
)
"""The possible results of checks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: Check
    state: State
    topic: Topic
    values: Mapping[str, Any] = field(default_factory=dict)  # For the message
