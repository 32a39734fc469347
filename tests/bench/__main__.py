"""`make bench`: every bench of this folder, one after the other, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

BENCHES = ("recreate", "way_to_stop", "admission", "metrics_cost", "forecast", "size", "rollout")
IMAGE = {"PYTHONOPTIMIZE": "2", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""What the Dockerfile sets for the daemons' sake."""


def main() -> int:
    """Run what there is; the exit code counts the benches that broke."""
    os.environ.update(IMAGE)
    # In the image all is compiled before: whoever compiles at its start keeps a MiB or two for good.
    subprocess.run([sys.executable, "-c", "import daemon.node.daemon, daemon.manager.daemon"], check=True)
    broken = 0
    for name in BENCHES:
        if Path(__file__).with_name(f"{name}.py").exists():
            broken += subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode != 0
    return broken


if __name__ == "__main__":
    sys.exit(main())
