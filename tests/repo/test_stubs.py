"""The CRI's description agrees with the interface as published, and the stubs agree with the description."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

import cri_stubs
from cri_stubs import api_pb2

ROOT = Path(__file__).resolve().parents[2]
FACTS = json.loads((Path(__file__).parent / "data" / "cri-runtime-v1.json").read_text())
PREFIX = f".{FACTS['package']}."
NEW_NAMES = "SIGNAL_"
SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


def described() -> FileDescriptorProto:
    proto = FileDescriptorProto()
    api_pb2.DESCRIPTOR.CopyToProto(proto)
    return proto


def type_of(field: FieldDescriptorProto, message: DescriptorProto) -> tuple[str, bool]:
    """The field's type in the words of a proto file, and whether it is repeated."""
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    for nested in message.nested_type:
        if nested.options.map_entry and field.type_name == f"{PREFIX}{message.name}.{nested.name}":
            key, value = (type_of(part, nested)[0] for part in nested.field)
            return f"map<{key}, {value}>", False
    return field.type_name.removeprefix(PREFIX) or SCALARS[field.type], repeated


def values(enum: EnumDescriptorProto) -> dict[str, int]:
    """Without the names of Kubernetes 1.37 for what had another name before."""
    return {value.name: value.number for value in enum.value if not value.name.startswith(NEW_NAMES)}


def fields(message: DescriptorProto) -> list[dict[str, Any]]:
    found = []
    for field in message.field:
        kind, repeated = type_of(field, message)
        entry: dict[str, Any] = {"name": field.name, "number": field.number, "type": kind}
        entry |= {"repeated": True} if repeated else {}
        entry |= {"deprecated": True} if field.options.deprecated else {}
        assert not field.HasField("oneof_index"), f"{message.name}.{field.name} is in a oneof"
        found.append(entry)
    return found


def as_facts(proto: FileDescriptorProto) -> dict[str, Any]:
    """A compiled proto in the shape of the facts file."""
    messages: dict[str, Any] = {}
    for message in proto.message_type:
        messages[message.name] = {"fields": fields(message)}
        if message.enum_type:
            messages[message.name]["enums"] = {enum.name: values(enum) for enum in message.enum_type}
    return {
        "package": proto.package,
        "syntax": proto.syntax,
        "services": {
            service.name: {
                method.name: {
                    "request": method.input_type.removeprefix(PREFIX),
                    "response": method.output_type.removeprefix(PREFIX),
                    "server_streaming": method.server_streaming,
                    "client_streaming": method.client_streaming,
                }
                for method in service.method
            }
            for service in proto.service
        },
        "enums": {enum.name: values(enum) for enum in proto.enum_type},
        "messages": messages,
    }


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the proto file gives it today."""
    out = tmp_path_factory.mktemp("stubs")
    subprocess.run([sys.executable, str(ROOT / "proto" / "generate.py"), "--out", str(out)], check=True)
    return out / "cri_stubs"


def test_each_signal_has_both_of_its_names() -> None:
    old = FACTS["enums"]["Signal"]
    for name, number in old.items():
        assert api_pb2.Signal.Value(name) == api_pb2.Signal.Value(f"{NEW_NAMES}{name}") == number
    assert len(api_pb2.Signal.items()) == 2 * len(old)


@pytest.mark.parametrize("part", ["package", "syntax", "enums", "services"])
def test_the_proto_has_every_enum_and_method_of_the_published_interface(part: str) -> None:
    assert as_facts(described())[part] == FACTS[part]


@pytest.mark.parametrize("name", FACTS["messages"])
def test_the_proto_has_every_field_of_the_published_message(name: str) -> None:
    by_number = {"fields": lambda found: sorted(found, key=lambda field: int(field["number"]))}
    ours, published = (
        {key: by_number.get(key, dict)(value) for key, value in messages[name].items()}
        for messages in (as_facts(described())["messages"], FACTS["messages"])
    )
    assert ours == published


def test_the_proto_has_nothing_that_was_not_published() -> None:
    assert set(as_facts(described())["messages"]) == set(FACTS["messages"])


def test_the_committed_stubs_describe_what_the_proto_describes(fresh: Path) -> None:
    program = "import sys; from cri_stubs import api_pb2; sys.stdout.buffer.write(api_pb2.DESCRIPTOR.serialized_pb)"
    generated = subprocess.run(
        [sys.executable, "-c", program], cwd=fresh.parent, check=True, stdout=subprocess.PIPE
    ).stdout
    assert descriptor_pb2.FileDescriptorProto.FromString(generated) == described()


def test_the_committed_stubs_call_the_methods_by_their_names_on_the_wire() -> None:
    source = (ROOT / "cri_stubs" / "api_pb2_grpc.py").read_text()
    paths = {f"/runtime.v1.{service}/{method}" for service, methods in FACTS["services"].items() for method in methods}
    assert set(re.findall(r"'(/runtime\.v1\.[^']+)'", source)) == paths


def test_the_committed_stubs_are_what_the_recorded_generators_give(fresh: Path) -> None:
    installed = {name: version(name) for name in cri_stubs.GENERATED_WITH}
    if installed != cri_stubs.GENERATED_WITH:
        pytest.skip(f"generated with {cri_stubs.GENERATED_WITH}, installed are {installed}")
    committed = ROOT / "cri_stubs"
    names = sorted(path.name for path in fresh.iterdir() if path.is_file())
    assert names == sorted(path.name for path in committed.iterdir() if path.is_file())
    for name in names:
        assert (committed / name).read_bytes() == (fresh / name).read_bytes(), f"{name} is stale: run `make stubs`"


def test_the_project_asks_for_libraries_that_the_stubs_accept() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = dict(line.split(">=") for line in project["dependencies"])
    messages = (ROOT / "cri_stubs" / "api_pb2.py").read_text()
    services = (ROOT / "cri_stubs" / "api_pb2_grpc.py").read_text()
    for name, found in (
        ("protobuf", re.search(r"Protobuf Python Version: ([\d.]+)", messages)),
        ("grpcio", re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", services)),
    ):
        assert found is not None
        assert numbers(lowest[name]) >= numbers(found[1]), f"{name}>={lowest[name]}, the stubs need {found[1]}"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
