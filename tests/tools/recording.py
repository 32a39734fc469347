"""`make pictures`: docs/recreate.svg, what a terminal shows of a `kubectl recreate` on a local node, for the README."""

import asyncio
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from crrd_localnode.daemons import node_daemon, running_manager
from crrd_localnode.node import LocalNode
from crrd_localnode.workload import Maker

OUTPUT = Path(__file__).parents[2] / "docs" / "recreate.svg"
NAMESPACE, WIDTH = "default", 124
LOOP = "trap 'exit 0' TERM; while true; do sleep 0.1; done"
PODS = "kubectl get pods"
RECREATE = "kubectl recreate deployment/web -c app --max-unavailable 2"
REPLACE = "kubectl recreate deployment/web -c side --image side:2 --template keep --max-unavailable 2"


async def run(node: LocalNode, command: str) -> str:
    """What a command prints."""
    program, *words = command.split()
    if words[0] == "recreate":  # the same program as the plugin
        program = str(Path(sys.executable).with_name("crrd"))
    where = ("--kubeconfig", str(node.kubeconfig), "-n", NAMESPACE)
    process = await asyncio.create_subprocess_exec(program, *words, *where, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{command}: exit code {process.returncode}")
    return out.decode()


async def record() -> None:
    """Run the commands, and draw what they print."""
    console = Console(record=True, width=WIDTH)
    container = {"image": "busybox", "command": ["sh", "-c", LOOP]}
    async with LocalNode() as node, running_manager(node), node_daemon(node):
        spec = {
            "nodeName": node.node_name,
            "hostNetwork": True,
            "containers": [{"name": "app", **container}, {"name": "side", **container}],
        }
        await Maker(node.client, NAMESPACE).workload("Deployment", "web", 4, spec)
        while (pods := await run(node, PODS)).count("2/2") < 4:
            await asyncio.sleep(0.2)
        console.print(Text.from_ansi(f"$ {PODS}\n{pods}$ {RECREATE}\n{await run(node, RECREATE)}$ {PODS}"))
        console.print(Text.from_ansi(f"{await run(node, PODS)}$ {REPLACE}\n{await run(node, REPLACE)}$ {PODS}"))
        console.print(Text.from_ansi(await run(node, PODS)), end="")
    drawn = console.export_svg(title="kubectl recreate", unique_id="recreate")
    OUTPUT.write_text(re.sub(r"@font-face {[^}]*}\s*", "", drawn), encoding="utf-8")  # those would be fetched


if __name__ == "__main__":
    asyncio.run(record())
