"""What a training script of the tests does once, in the middle of a step: it is killed, stopped, or raises.

``MISHAP`` is ``KIND:STEP:RANK``. ``record`` writes down every step with its loss, and ``compare`` the steps that ftcore
counted beside the framework's own.
"""

import os
import signal
from pathlib import Path

from ftcore.worker._progress import progress

RANK = os.environ.get("RANK", "0")
KIND, STEP, VICTIM = (os.environ.get("MISHAP") or "none:0:0").split(":")


class Mishap(Exception):
    """The exception of the kind ``exception``."""


def happen(step: int) -> None:
    """Let it happen, if this is its step and it has not happened yet.

    Args:
        step: the step that is computed, counted from 1.
    """
    happened = Path("happened")
    if KIND == "none" or step != int(STEP) or RANK != VICTIM or happened.exists():
        return
    happened.write_text(KIND)
    if KIND == "exception":
        raise Mishap(f"at step {step}")
    os.kill(os.getpid(), signal.SIGKILL if KIND == "kill" else signal.SIGSTOP)


def record(step: int, loss: float) -> None:
    """Write down the loss of a completed step, to the last bit."""
    with Path(f"losses.{RANK}").open("a") as file:
        file.write(f"{step} {float(loss).hex()}\n")


def compare(step: int) -> None:
    """Print the framework's own step and the one that ftcore counted."""
    print(f"rank {RANK} framework {step} counted {progress()._step}", flush=True)
