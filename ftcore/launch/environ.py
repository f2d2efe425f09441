"""The environment of ftcore's own processes and of the workers.

House rule: imports little, because ``ftrun`` imports it before it starts the warm process.
"""

import os

from ftcore.runtime.log_format import FORMAT_ENV
from ftcore.runtime.wire import SECRET_VARIABLES

QUIET = ("GRPC_VERBOSITY", "NONE")
"""Set for ftcore's own processes unless the user set it; workers do not inherit it."""


def silence_grpc() -> None:
    """Silence gRPC's messages about failed handshakes, which ftcore reports; call before gRPC is imported."""
    os.environ.setdefault(*QUIET)


def worker_base_env(workers: int, signals: str) -> dict[str, str]:
    """The environment that a node's workers inherit.

    Args:
        workers: number of workers of the node.
        signals: value of ``--signals-to-handle``.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PET_") and name not in (*SECRET_VARIABLES, FORMAT_ENV) and (name, value) != QUIET
    }
    env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signals
    if workers > 1 and "OMP_NUM_THREADS" not in env:
        env["OMP_NUM_THREADS"] = "1"  # as torchrun does: workers of one node must not compete for its cores
    return env
