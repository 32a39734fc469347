"""The parts of a local node as separate programs, so that each can be killed and restarted.

Run as `python -m tests.support.programs.api` (or `kubelet`, `runtime`). SIGTERM and SIGINT end them gracefully. Each
has a module of its own, and imports only what it needs: dozens of tests start a runtime.
"""

NAME = __name__
