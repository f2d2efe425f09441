"""Counts steps, one file per rank, without torch; does what the test drops beside it.

``do.RANK``: Python code, run once, at the rank's next step. ``always.RANK``: run at every step, with ``step`` at hand.
``boundary``: the script marks step boundaries and saves on request (``saved.RANK`` has the step). ``finish``: every
rank ends with code 0. ``on_term.RANK``: code, run on SIGTERM.
"""

import os
import signal
import sys
import time
from pathlib import Path

from ftcore.worker import boundary, on_save, report

RANK = os.environ["RANK"]
HERE = Path.cwd()
STEP, DO, ALWAYS, ON_TERM = (HERE / f"{name}.{RANK}" for name in ("step", "do", "always", "on_term"))


def take(path: Path) -> str:
    try:
        code = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return ""
    return code


BOUNDARY = (HERE / "boundary").exists()
if BOUNDARY:

    @on_save
    def save(step: int) -> None:
        """Write the step down; fail as ``fail.RANK`` says."""
        exec(take(HERE / f"fail.{RANK}"), globals())
        (HERE / f"saved.{RANK}").write_text(str(step))


if ON_TERM.exists():
    signal.signal(signal.SIGTERM, lambda *_: exec(ON_TERM.read_text(), globals()))
step = int(STEP.read_text()) if STEP.exists() else 0
print(f"rank {RANK} goes on after step {step}, args {sys.argv[1:]}", flush=True)
while not (HERE / "finish").exists():
    time.sleep(0.02)
    step += 1
    if ALWAYS.exists():
        exec(ALWAYS.read_text(), globals())
    exec(take(DO), globals())
    new = HERE / f"new.{RANK}"
    new.write_text(str(step))
    new.replace(STEP)
    report(step)
    if BOUNDARY:
        boundary(step)
