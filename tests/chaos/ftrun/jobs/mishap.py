"""What a training script of the tests does once, in the middle of a step: it is killed, stopped, raises, or waits.

``MISHAP`` is ``KIND:STEP:RANK``, and KIND ``kill``, ``stop``, ``exception`` or ``hold`` (until there is a file ``go``).
``record`` writes down every step with its loss, and ``compare`` the steps that ftcore counted beside the script's own.
"""

import os
import signal
import time
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
    if KIND == "hold":
        while not Path("go").exists():
            time.sleep(0.01)
        return
    os.kill(os.getpid(), signal.SIGKILL if KIND == "kill" else signal.SIGSTOP)


def record(step: int, loss: float) -> None:
    """Write down the loss of a completed step, to the last bit."""
    with Path(f"losses.{RANK}").open("a") as file:
        file.write(f"{step} {float(loss).hex()}\n")


def compare(step: int, here: int) -> None:
    """Print the script's own step and the steps that this process made, and what ftcore counted of both.

    A dash is printed where ftcore does not know the number of the last step.

    Args:
        step: the script's own number of the last step.
        here: steps of this process.
    """
    counted = progress()
    number = counted._step if counted._absolute else "-"
    print(f"rank {RANK} own {step} {here} counted {number} {counted._steps}", flush=True)
