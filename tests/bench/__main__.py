"""`make bench`: every bench of this folder, one after the other, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

BENCHES = ("recreate", "way_to_stop", "admission", "metrics_cost", "forecast", "size", "rollout")


def main() -> int:
    """Run what there is; the exit code counts the benches that broke."""
    broken = 0
    for name in BENCHES:
        if Path(__file__).with_name(f"{name}.py").exists():
            broken += subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode != 0
    return broken


if __name__ == "__main__":
    sys.exit(main())
