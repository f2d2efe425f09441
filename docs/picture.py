"""Runs the demo in a terminal and writes what it prints to docs/images/demo.svg, the picture in the README.

python docs/picture.py
"""

import os
import pty
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
COLUMNS = 136


def recorded(command: list[str]) -> str:
    """What a command prints on a terminal of ``COLUMNS`` columns, its colours included."""
    ours, theirs = pty.openpty()
    env = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    except OSError:  # a terminal without a process behind it
        pass
    if process.wait() != 0:
        sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return b"".join(pieces).decode()


def main() -> None:
    """Write the picture."""
    text = recorded([sys.executable, "examples/demo/demo.py"]).replace("\r\n", "\n")
    shown = [line.rpartition("\r")[2] for line in text.splitlines()]
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi("\n".join(shown)))
    console.save_svg(str(ROOT / "docs/images/demo.svg"), title="make demo")


if __name__ == "__main__":
    main()
