"""`make bench`: every bench of this folder, one after the other, each in a process of its own."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BENCHES = ("recreate", "way_to_stop", "admission", "metrics_cost", "forecast", "size", "rollout")
DAEMONS = tuple(f"crrd.{name}" for name in ("cli.main", "cli.node", "cli.manager", "node.daemon", "manager.daemon"))
"""Modules that import all that the daemons start with."""
DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


def main() -> int:
    """Run what there is; the exit code counts the benches that broke."""
    os.environ.update(re.findall(r"\b(MALLOC_\w+|PYTHONOPTIMIZE)=(\S+)", DOCKERFILE.read_text(encoding="utf-8")))
    broken = 0
    with tempfile.TemporaryDirectory(prefix="crrd-bench-") as compiled:
        os.environ["PYTHONPYCACHEPREFIX"] = compiled
        # In the image all is compiled before: whoever compiles at its start keeps some MiB for good.
        writing = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        subprocess.run([sys.executable, "-c", f"import {', '.join(DAEMONS)}"], check=True, env=writing)
        for name in BENCHES:
            broken += subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode != 0
    return broken


if __name__ == "__main__":
    sys.exit(main())
