"""What everything costs: the one declared table of durations that a campaign is made of, each with its source.

House rules: no duration stands anywhere else in the campaign. A figure's source is one of ``default`` (our choice
inside the ranges that the sources of ``profiles.py`` give), the name of a profile, ``given`` (asked for by the caller)
or ``this log`` (measured in a recorded job; see ``whatif/``), and every result that uses a figure can name it.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from ftcore.errors import UsageError

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
"""How a kind of fault shows -> the figure that says how long that takes."""


@attrs.frozen
class Figure:
    """A duration.

    Args:
        seconds: how long.
        source: where it comes from.
        doc: what it is, one line.
    """

    seconds: float
    source: str
    doc: str


DEFAULTS: dict[str, Figure] = {
    name: Figure(value, "default", doc)
    for name, value, doc in (
        ("detect_crash", 1.0, "a worker ends until its agent says so, error file and last output read"),
        ("detect_lost", 2.0, "an agent falls silent until its lease is over (timing: node_lease_s)"),
        ("detect_left", 0.0, "an agent says goodbye until its master knows"),
        ("detect_timeout", 600.0, "a collective stands still until its own time limit (NCCL's default, 10 min)"),
        ("detect_hang", 600.0, "no progress until the detector says so (middle of 1 min to 30 min)"),
        ("detect_spike", 10.0, "a step goes wrong until the detector says so"),
        ("detect_slow", 300.0, "a node becomes slow until the detector says so"),
        ("stop", 5.0, "workers are told to stop until the last one is gone"),
        ("park", 2.0, "workers are told to leave their round until the last one waits"),
        ("store", 0.01, "a node is told to serve a store until it does"),
        ("start", 20.0, "workers are told to start until all run: processes, imports, groups"),
        ("start_parked", 2.0, "parked workers are told to start until all are in their new round"),
        ("load", 120.0, "workers run until they have loaded their checkpoint (1 min to 5 min from storage)"),
        ("load_memory", 10.0, "the same from memory: of a parked worker's peers"),
        ("warm_up", 10.0, "first steps that are slower than others: compilation, caches, connections"),
        ("in_place", 2.0, "an order that leaves processes in place is given until all have obeyed"),
        ("save", 40.0, "workers are told to save until a checkpoint is committed"),
        ("check", 60.0, "a node is told to check itself until it has"),
        ("platform", 1.0, "the platform is given an order until it takes it"),
        ("replace", 900.0, "a node is gone or given up until another one joins for it (1 min with a spare, to hours)"),
        ("repair", 86400.0, "a machine stays bad until somebody has repaired it, if nobody replaces it"),
        ("resubmit", 3600.0, "the job ended by itself until somebody has found out and starts it again"),
        ("poll", 0.0, "somebody looks this often whether the job still runs, and only then begins to resubmit it"),
        ("step", 10.0, "one step"),
        ("ckpt_interval", 1800.0, "training between two checkpoints"),
        ("ckpt_cost", 40.0, "training stands still for a checkpoint"),
    )
}
"""Every figure, with its default."""

RECOVERY = ("detect_crash", "stop", "start", "load", "warm_up")
"""What a plain restart of all processes goes through, one after the other."""

RECOVERY_MAX = {"detect_crash": 10.0, "stop": 10.0, "load": 600.0, "warm_up": 60.0}
"""The longest that these may take: an order to stop, and a policy that waits for a step, have their deadlines."""

INCLUDED = ("store", "check", "platform", "replace", "resubmit", "poll")
"""What a restart given as one figure is held to include."""


@attrs.frozen
class Costs:
    """A full table of figures.

    Args:
        figures: by name; all of ``DEFAULTS``.
    """

    figures: Mapping[str, Figure] = attrs.field(factory=lambda: dict(DEFAULTS))

    def __getitem__(self, name: str) -> float:
        return self.figures[name].seconds

    def source(self, name: str) -> str:
        """Where a figure comes from."""
        return self.figures[name].source

    def changed(self, values: Mapping[str, float], source: str) -> "Costs":
        """The same table with other figures.

        Args:
            values: seconds by name.
            source: where they come from.

        Raises:
            UsageError: there is no such figure, or it is negative.
        """
        figures = dict(self.figures)
        for name, value in values.items():
            if name not in figures:
                raise UsageError(f"no cost is called {name!r}; there are: {', '.join(figures)}")
            if not 0 <= value < 1e12:
                raise UsageError(f"cost {name}: found {value:g}; expected seconds, not negative")
            figures[name] = Figure(value, source, figures[name].doc)
        return Costs(figures)

    def with_restart(self, total_s: float) -> "Costs":
        """The same table with a plain restart that takes so long from the fault to work again, in all.

        The parts keep their proportions up to ``RECOVERY_MAX``, beyond which orders and policies would give up;
        starting takes the rest. Whatever else a restart may bring with it (a check, another node, a job that ended) is
        held to be in the figure and takes no time of its own.

        Args:
            total_s: seconds.
        """
        share = total_s / sum(self[name] for name in RECOVERY)
        parts = {name: min(self[name] * share, most) for name, most in RECOVERY_MAX.items()}
        start = max(0.0, total_s - sum(parts.values()))
        return self.changed({**dict.fromkeys(INCLUDED, 0.0), **parts, "start": start}, "given")

    def to_json(self) -> dict[str, Any]:
        """Seconds and source by name."""
        return {name: {"seconds": figure.seconds, "source": figure.source} for name, figure in self.figures.items()}
