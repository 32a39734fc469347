"""The CRI v1 in Python: messages (`api_pb2`) and services (`api_pb2_grpc`), with types beside them.

Generated from `proto/runtime/v1/api.proto` by `proto/generate.py`; nothing in this package is edited by hand.
"""

GENERATED_WITH = {
    "grpcio-tools": "1.85.1",
    "mypy-protobuf": "5.1.0",
}
"""The generators and their versions."""
