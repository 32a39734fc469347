"""`crrd demo`: its flags. `crrd` finds this module through the entry point `demo` in the group `crrd.commands`."""

import argparse

from crrd.cli.options import add_cri_flag, add_flag
from crrd_localnode.demo import run_demo


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags and arguments."""
    parser.description = (
        "Starts a local node (API server, kubelet and a runtime of plain processes, all on loopback) and a pod of\n"
        "two containers. Restarts one of them with nothing installed, then installs crrd, and shows what it adds."
    )
    real = "--cri-endpoint unix:///run/containerd/containerd.sock --image busybox:1.36"
    parser.epilog = (
        f"examples:\n  crrd demo\n  crrd demo {real}\n"
        "  crrd demo --keep     then, for example: kubectl recreate deployment/web --whole-pod"
    )
    add_cri_flag(parser)
    about = "an image with a shell that the runtime has or can pull"
    add_flag(parser, "--image", about, default="busybox", metavar="IMAGE")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C, to try kubectl")


def run(args: argparse.Namespace) -> int:
    """Run the demo. Return 0 if the container was recreated. ConfigurationError if the runtime cannot be used."""
    return run_demo(cri_endpoints=args.cri_endpoint or [], image=args.image, keep=args.keep)
