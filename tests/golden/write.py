"""Writes golden files; see README.md. Never overwrites a log."""

import json
import sys
from pathlib import Path

from ftcore import __version__
from ftcore.events import all_types
from ftcore.ids import JobName
from ftcore.logs.archive import ArchiveWriter, read_events
from ftcore.replay import fold_log
from ftcore.states.model import digest

HERE = Path(__file__).parent
REGISTRY = HERE / "event_registry.json"
LOGS = HERE / "logs"


def registry() -> None:
    """Add new types and versions; keep what is there."""
    known = json.loads(REGISTRY.read_text()) if REGISTRY.exists() else {}
    for event_type in all_types():
        known[event_type.name] = max(known.get(event_type.name, 0), event_type.version)
    REGISTRY.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")


def logs() -> None:
    """Write the logs that the present version lacks."""
    from scenarios import SCENARIOS

    folder = LOGS / __version__
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in SCENARIOS.items():
        path = folder / f"{name}.ftlog"
        if not path.exists():
            with ArchiveWriter(path, JobName(name)) as writer:
                for event in make().events:
                    writer.add(event)
            path.chmod(0o644)
    digests()


def digests() -> None:
    """Write the digest of every log."""
    for folder in sorted(path for path in LOGS.iterdir() if path.is_dir()):
        found = {path.name: digest(fold_log(read_events(path))) for path in sorted(folder.glob("*.ftlog"))}
        (folder / "digests.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    {"registry": registry, "logs": logs, "digests": digests}[sys.argv[1]]()
