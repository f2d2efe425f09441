"""Table of all durations of a campaign, each with its source.

No other module of the campaign has durations. The source of a figure is ``default`` (chosen within the ranges in the
sources of ``profiles.py``), the name of a profile, ``given`` (by the caller) or ``this log`` (measured in a recorded
job; see ``whatif/``). Results name the sources of their figures.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from ftcore.errors import UsageError
from ftcore.wording import format_elapsed

DETECTIONS = {
    "crash": "detect_crash",
    "lost": "detect_lost",
    "left": "detect_left",
    "timeout": "detect_timeout",
    "hang": "detect_hang",
    "spike": "detect_spike",
    "slow": "detect_slow",
    "join": "detect_left",
}
"""How a kind of fault is detected -> the figure with the detection time."""


@attrs.frozen
class Figure:
    """A duration.

    Args:
        seconds: the value.
        source: its source.
        doc: description, one line.
    """

    seconds: float
    source: str
    doc: str


DEFAULTS: dict[str, Figure] = {
    name: Figure(value, "default", doc)
    for name, value, doc in (
        ("detect_crash", 1.0, "end of a worker until its agent reports it, with error file and last output"),
        ("detect_lost", 2.0, "last frame of an agent until its lease expires (timing: node_lease_s)"),
        ("detect_left", 0.0, "an agent leaves until its master is notified"),
        ("detect_timeout", 600.0, "a collective blocks until its own timeout (NCCL's default, 10 min)"),
        ("detect_hang", 600.0, "last progress until the detector reports a hang (middle of 1 min to 30 min)"),
        ("detect_spike", 10.0, "a bad step until the detector reports it"),
        ("detect_slow", 300.0, "a node becomes slow until the detector reports it"),
        ("stop", 5.0, "order to stop workers until the last one has ended"),
        ("park", 2.0, "order to park workers until the last one is parked"),
        ("store", 0.01, "order to serve a store until the node serves it"),
        ("start", 20.0, "order to start workers until all run: processes, imports, process groups"),
        ("start_parked", 2.0, "order to start parked workers until all are in the new round"),
        ("load", 120.0, "start of the workers until they have loaded their checkpoint (1 min to 5 min from storage)"),
        ("load_memory", 10.0, "the same from memory, of a parked worker's peers"),
        ("warm_up", 10.0, "additional time of the first steps of new processes: compilation, caches"),
        ("in_place", 2.0, "order that keeps the processes until all nodes have carried it out"),
        ("save", 40.0, "order to save until a checkpoint is committed"),
        ("check", 60.0, "order for a health check until its result"),
        ("platform", 1.0, "request to the platform until it accepts"),
        ("replace", 900.0, "loss or release of a node until its replacement joins (1 min with a spare, to hours)"),
        ("repair", 86400.0, "repair of a faulty machine that is not replaced"),
        ("resubmit", 3600.0, "the job ends by itself until an operator notices and resubmits it"),
        ("poll", 0.0, "interval at which the job's end is looked for; resubmission starts at the next look"),
        ("step", 10.0, "one step"),
        ("ckpt_interval", 1800.0, "training between two checkpoints"),
        ("ckpt_cost", 40.0, "time for which a checkpoint blocks training"),
    )
}
"""All figures with their defaults."""

RECOVERY = ("detect_crash", "stop", "start", "load", "warm_up")
"""Phases of a plain restart of all processes, in order."""

RECOVERY_MAX = {"detect_crash": 10.0, "stop": 10.0, "load": 600.0, "warm_up": 60.0}
"""Upper bounds of phases: an order to stop, and a policy that waits for a step, have deadlines."""

INCLUDED = ("store", "check", "platform", "replace", "resubmit", "poll")
"""Figures that the total time of a restart includes."""


@attrs.frozen
class Costs:
    """A complete table of figures.

    Args:
        figures: figures by name, with all names of ``DEFAULTS``.
    """

    figures: Mapping[str, Figure] = attrs.field(factory=lambda: dict(DEFAULTS))

    def __getitem__(self, name: str) -> float:
        return self.figures[name].seconds

    def source(self, name: str) -> str:
        """The source of a figure."""
        return self.figures[name].source

    def changed(self, values: Mapping[str, float], source: str) -> "Costs":
        """A copy with other values.

        Args:
            values: seconds by name.
            source: their source.

        Raises:
            UsageError: an unknown name or a negative value.
        """
        figures = dict(self.figures)
        for name, value in values.items():
            if name not in figures:
                raise UsageError(f"unknown cost {name!r}; accepted: {', '.join(figures)}")
            if not 0 <= value < 1e12:
                raise UsageError(f"cost {name}: found {value:g}; expected seconds, not negative")
            figures[name] = Figure(value, source, figures[name].doc)
        return Costs(figures)

    def with_restart(self, total_s: float) -> "Costs":
        """A copy in which a plain restart takes ``total_s`` seconds from the fault until training resumes.

        The phases keep their proportions up to ``RECOVERY_MAX``, beyond which orders and policies time out; ``start``
        takes the rest. The figures in ``INCLUDED`` become 0.
        """
        share = total_s / sum(self[name] for name in RECOVERY)
        parts = {name: min(self[name] * share, most) for name, most in RECOVERY_MAX.items()}
        start = max(0.0, total_s - sum(parts.values()))
        return self.changed({**dict.fromkeys(INCLUDED, 0.0), **parts, "start": start}, "given")

    def to_json(self) -> dict[str, Any]:
        """Seconds and source, by name."""
        return {name: {"seconds": figure.seconds, "source": figure.source} for name, figure in self.figures.items()}


def unknown_costs(costs: Costs) -> str:
    """What an estimate assumes about the two costs that logs seldom show."""
    again, step = format_elapsed(costs["resubmit"]), format_elapsed(costs["step"])
    return f"where the log does not tell: a job that ended is started again after {again}, and a step takes {step}"
