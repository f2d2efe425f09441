"""``acme-inlet``: the temperature of the cooling air, before a node trains."""

import os
from pathlib import Path
from typing import Any

SENSOR = "ACME_SENSOR"
"""Variable with the path of a file with degrees Celsius."""


def inlet(context: Any) -> dict[str, Any]:
    """Fail a node whose air is too hot; ``context`` has its name, its devices and its address."""
    path = os.environ.get(SENSOR)
    if path is None:
        return {"verdict": "unavailable", "detail": f"{context.node} has no sensor: {SENSOR} is not set"}
    celsius = float(Path(path).read_text())
    verdict = "failed" if celsius > 40 else "passed"
    return {"verdict": verdict, "detail": f"inlet at {celsius:g} C", "values": {"celsius": celsius}}


inlet.budget_s = 5.0  # type: ignore[attr-defined]  # seconds until the check counts as hung
