"""`make bench`: every bench of this folder, one after the other, each in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

BENCHES = ("recreate", "way_to_stop", "admission", "metrics_cost", "forecast", "size", "rollout")
DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


def main() -> int:
    """Run what there is; the exit code counts the benches that broke."""
    os.environ.update(re.findall(r"\b(MALLOC_\w+|PYTHONOPTIMIZE)=(\S+)", DOCKERFILE.read_text(encoding="utf-8")))
    # In the image all is compiled before: whoever compiles at its start keeps a MiB or two for good.
    subprocess.run([sys.executable, "-c", "import daemon.node.daemon, daemon.manager.daemon"], check=True)
    broken = 0
    for name in BENCHES:
        if Path(__file__).with_name(f"{name}.py").exists():
            broken += subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode != 0
    return broken


if __name__ == "__main__":
    sys.exit(main())
