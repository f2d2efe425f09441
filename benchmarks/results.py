"""Writes RESULTS.md: each benchmark rewrites its own section, with the command that produced it.

House rule: a figure is reported with that of a peer or a physical limit from the same run, and their ratio.
"""

import os
import platform
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles ftcore, but not the installed peers
RESULTS = Path(__file__).with_name("RESULTS.md")
HEADER = """# Results

Written by the benchmarks themselves (`make bench`); each section names its command. Compare ratios inside one section,
not figures of different machines or days.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def spread(values: Sequence[float], unit: str, scale: float = 1.0) -> str:
    """Return ``median (min to max, n)`` of measurements."""
    scaled = sorted(value * scale for value in values)
    digits = 0 if scaled[0] >= 100 else 1 if scaled[0] >= 10 else 2
    middle = statistics.median(scaled)
    return f"{middle:.{digits}f} {unit} ({scaled[0]:.{digits}f} to {scaled[-1]:.{digits}f}, n={len(scaled)})"


def write(name: str, command: str, body: str) -> None:
    """Rewrite a section.

    Args:
        name: its heading.
        command: the command that reproduces it.
        body: its contents, in Markdown.
    """
    text = RESULTS.read_text() if RESULTS.exists() else HEADER
    section = f"## {name}\n\n`{command}` on {machine()}\n\n{body.strip()}\n\n"
    pattern = re.compile(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    text = pattern.sub(lambda _: section, text) if pattern.search(text) else text.rstrip() + "\n\n" + section
    RESULTS.write_text(text.rstrip() + "\n")
    print(body)


def machine() -> str:
    """Describe the machine."""
    kib = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, {kib >> 20} GiB, Linux {platform.release()}, Python {sys.version.split()[0]}, "
        f"load before the run {load:.1f}"
    )
