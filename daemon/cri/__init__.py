"""The container runtime's edge: finding its socket, speaking CRI v1 to it, and telling the core what it said.

Nothing outside of this package sees protobuf or gRPC; it knows neither requests nor the Kubernetes API.
"""
