"""Access to the container runtime: finds its socket, calls CRI v1, and converts the responses to the core's values.

No other package uses gRPC. This package knows neither requests nor the Kubernetes API.
"""

import os

# gRPC reads this when it is loaded. Without it, gRPC writes to stderr, between the lines of our log, whenever the
# runtime restarts. Our log has the errors anyway.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
