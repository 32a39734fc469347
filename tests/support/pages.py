"""The commands of a page of the docs: what stands in its blocks of shell, so that tests run what readers copy."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETUP = ("python3", "kind", "docker")
"""Programs that set a machine up. Tests have a cluster, the commands and the image already."""
_HEREDOC = re.compile(r" - <<END\n(.*?)^END$", re.MULTILINE | re.DOTALL)


def sections(page: str) -> dict[str, str]:
    """Return the blocks of shell in each section of a page, by its heading."""
    found = {}
    for part in re.split(r"(?m)^## ", (DOCS / page).read_text(encoding="utf-8"))[1:]:
        heading, _, body = part.partition("\n")
        if blocks := re.findall(r"^```sh\n(.*?)^```$", body, re.MULTILINE | re.DOTALL):
            found[heading] = "".join(blocks)
    return found


def commands(text: str) -> list[str]:
    """Return the commands in blocks of shell, without the objects that they apply."""
    return _HEREDOC.sub(" -", text).splitlines()


def objects(text: str) -> list[dict[str, Any]]:
    """Return the objects that blocks of shell apply."""
    return [each for document in _HEREDOC.findall(text) for each in yaml.safe_load_all(document)]


def script(page: str, *headings: str) -> str:
    """Return the blocks of these sections, or of all, as a script that stops at the first failure."""
    known = sections(page)
    text = "".join(known[heading] for heading in headings or known)
    setup = re.compile(rf"^(?:{'|'.join(SETUP)}) .*\n", re.MULTILINE)
    return f"set -eux\n{setup.sub('', text)}"


def run(page: str, heading: str, folder: Path, kubeconfig: Path, namespace: str) -> str:
    """Run a section like a reader whose context has the namespace, with this checkout's commands. Return its output."""
    config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    for each in config["contexts"]:
        each["context"]["namespace"] = namespace
    (folder / "kubeconfig").write_text(yaml.safe_dump(config), encoding="utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig"), "PATH": path}
    command = ["bash", "-c", script(page, heading)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    print(ended.stdout)
    return ended.stdout
