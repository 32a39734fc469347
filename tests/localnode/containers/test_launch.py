"""What a container is started and stopped with, as its config says it."""

import signal

import pytest
from google.protobuf import json_format

from cri_stubs import api_pb2
from crrd_localnode.containers.launch import stop_signal


@pytest.mark.parametrize("name", ["SIGINT", "SIGNAL_SIGINT"])
def test_a_stop_signal_has_its_name_of_before_and_since_kubernetes_1_37(name: str) -> None:
    config = json_format.ParseDict({"stopSignal": name}, api_pb2.ContainerConfig())
    assert stop_signal(config) == signal.SIGINT


@pytest.mark.parametrize("name", ["RUNTIME_DEFAULT", "SIGNAL_RUNTIME_DEFAULT", "SIGRTMAXMINUS1"])
def test_the_default_and_what_the_system_does_not_name_is_sigterm(name: str) -> None:
    config = json_format.ParseDict({"stopSignal": name}, api_pb2.ContainerConfig())
    assert stop_signal(config) == signal.SIGTERM
