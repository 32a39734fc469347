"""The local kubelet."""

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path

from crrd.kube.access.config import KubeconfigAccess
from crrd.kube.client import KubeClient
from crrd.lib.signals import stop_on_signals
from crrd_localnode.kubelet import Kubelet, Timing


async def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--kubeconfig", "--cri-endpoint", "--node-name"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--backoff", type=float, default=Timing().backoff)
    parser.add_argument("--relist", type=float, default=Timing().relist)
    arguments = parser.parse_args()
    ended = stop_on_signals()
    async with KubeClient(KubeconfigAccess(arguments.kubeconfig)) as client:
        timing = Timing(backoff=arguments.backoff, relist=arguments.relist)
        kubelet = Kubelet(client, arguments.cri_endpoint, arguments.node_name, arguments.root, timing)
        starting = asyncio.create_task(kubelet.start())
        try:
            await ended.wait()
        finally:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await kubelet.stop()


if __name__ == "__main__":
    asyncio.run(main())
