"""Generates the package `cri_stubs` from `runtime/v1/api.proto`; run as `python proto/generate.py [--out DIR]`.

It exists because protoc alone cannot lay the package out: the proto is compiled under the virtual path
`cri_stubs/api.proto`, so that the modules import each other as `cri_stubs.api_pb2`, while the names on the wire stay
`/runtime.v1.RuntimeService/...`. Beside protoc's modules it writes the `__init__.py`, which records the versions of
the generators: only with the same versions is the output the same byte for byte.

Needs grpcio-tools and mypy-protobuf (both in the extra `dev`).
"""
# ruff: noqa: INP001 - a script beside the proto that it reads, not a package

import argparse
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "cri_stubs"
GENERATORS = ("grpcio-tools", "mypy-protobuf")
INIT = '''"""The CRI v1 in Python: messages (`api_pb2`) and services (`api_pb2_grpc`), with types beside them.

Generated from `proto/runtime/v1/api.proto` by `proto/generate.py`; nothing in this package is edited by hand.
"""

GENERATED_WITH = {{
{versions}
}}
"""The generators and their versions."""
'''


class GenerationError(Exception):
    """The stubs cannot be generated; the message says why."""


def _plugin(name: str) -> str:
    """Protoc's option for one of mypy-protobuf's plugins, looked for beside the interpreter first."""
    path = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if path is None:
        raise GenerationError(f"{name} is missing: install the extra 'dev'")
    return f"--plugin={name}={path}"


def generate(out: Path) -> None:
    """Write the package `cri_stubs` into the directory `out`, over what is there.

    Raises:
        GenerationError: a generator is missing, or protoc refused the proto (its words are on standard error).
    """
    out.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={PACKAGE}={HERE / 'runtime' / 'v1'}",
        _plugin("protoc-gen-mypy"),
        _plugin("protoc-gen-mypy_grpc"),
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        f"{PACKAGE}/api.proto",
    ]
    if subprocess.run(command, check=False).returncode != 0:  # noqa: S603 - our own words, no shell
        raise GenerationError("protoc failed")
    versions = "\n".join(f'    "{name}": "{version(name)}",' for name in GENERATORS)
    (out / PACKAGE / "__init__.py").write_text(INIT.format(versions=versions))


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Generate the package cri_stubs from runtime/v1/api.proto.")
    parser.add_argument(
        "--out", type=Path, default=HERE.parent, metavar="DIR", help="where to put the package (default: this project)"
    )
    try:
        generate(parser.parse_args().out)
    except GenerationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
