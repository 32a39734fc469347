"""The container runtime's edge: finding its socket, speaking CRI v1 to it, and telling the core what it said.

Nothing outside of this package sees protobuf or gRPC; it knows neither requests nor the Kubernetes API.
"""

import os

# Read when gRPC is first loaded. Without it, gRPC writes a line of its own to stderr whenever the runtime restarts,
# between the lines of our log; what went wrong reaches the log through the errors all the same.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
