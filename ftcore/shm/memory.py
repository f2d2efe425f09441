"""Memory that this process can take: of the machine, and of its control groups (version 1 or 2).

House rules: what cannot be read is no limit.
"""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


def available(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return the bytes that can be taken before something is killed; None: not known.

    Args:
        proc: directory of the ``proc`` file system.
        cgroups: directory of the control groups.
    """
    found = [_of_machine(proc), *(_of_group(path) for path in _groups(proc, cgroups))]
    known = [count for count in found if count is not None]
    return max(0, min(known)) if known else None


def _of_machine(proc: Path) -> int | None:
    fields = _table(proc / "meminfo")
    return fields["MemAvailable:"] * 1024 if "MemAvailable:" in fields else None


def _groups(proc: Path, cgroups: Path) -> list[Path]:
    """Directories of this process's group of memory and its parents."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        inner = root / path.lstrip("/")
        found += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    return found


def _of_group(path: Path) -> int | None:
    for limit, usage, pages in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, taken = (path / limit).read_text().strip(), int((path / usage).read_text())
        except (OSError, ValueError):
            continue
        if most == "max":
            return None
        return int(most) - taken + _table(path / "memory.stat").get(pages, 0)
    return None


def _table(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    found = {}
    try:
        for line in path.read_text().splitlines():
            fields = line.split()
            if len(fields) > 1 and fields[1].isdigit():
                found[fields[0]] = int(fields[1])
    except OSError:
        pass
    return found
