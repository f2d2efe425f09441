"""The environment of ftcore's own processes and of the workers.

House rule: light, as ``ftrun`` imports it before it starts the warm process.
"""

import os

from ftcore.runtime.wire import WITHHELD

QUIET = ("GRPC_VERBOSITY", "NONE")
"""Set for ftcore's own processes, unless the user did; workers do not inherit it."""


def silence_grpc() -> None:
    """Keep gRPC from writing a line of its own for each failed handshake, which ftcore reports; before its import."""
    os.environ.setdefault(*QUIET)


def worker_base_env(workers: int, signals: str) -> dict[str, str]:
    """The environment that a node's workers inherit.

    Args:
        workers: how many.
        signals: names of the signals that end the job in order, as ``--signals-to-handle`` has them.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PET_") and name not in WITHHELD and (name, value) != QUIET
    }
    env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signals
    if workers > 1 and "OMP_NUM_THREADS" not in env:
        env["OMP_NUM_THREADS"] = "1"  # torchrun's rule: workers of one node must not fight for its cores
    return env
