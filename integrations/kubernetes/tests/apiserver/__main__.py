"""``python -m apiserver``: serve until interrupted."""

import argparse
import asyncio
import signal
from pathlib import Path

from .server import ApiServer


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m apiserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="port; 0: any free one")
    parser.add_argument("--mode", choices=("none", "fake", "processes"), default="fake", help="what pods do")
    parser.add_argument("--nodes", type=int, default=2, help="number of nodes")
    parser.add_argument("--gpus", type=int, default=8, help="nvidia.com/gpu of each node")
    parser.add_argument("--namespace", action="append", default=[], help="make this namespace (repeatable)")
    parser.add_argument("--auth", action="store_true", help="ask for tokens, heed roles")
    parser.add_argument("--tls", action="store_true", help="serve HTTPS")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig for the administrator to this file")
    return parser.parse_args()


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = ApiServer(
        host=options.host,
        port=options.port,
        mode=options.mode,
        nodes=options.nodes,
        capacity={"nvidia.com/gpu": str(options.gpus)} if options.gpus else None,
        namespaces=options.namespace,
        auth=options.auth,
        tls=options.tls,
    )
    async with server:
        if options.kubeconfig is not None:
            server.kubeconfig(options.kubeconfig)
        print(server.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve(arguments()))
