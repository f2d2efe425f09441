"""Diagrams of the machines as Mermaid and Graphviz text, with all rows.

The renderers read the rows, not the views: this needs no package, and the views lack final states and guard order.
"""

from collections.abc import Sequence

from ftcore.states.agent import AGENT, WORK
from ftcore.states.data import DATA
from ftcore.states.disruption import DISRUPTION
from ftcore.states.incident import INCIDENT
from ftcore.states.job import JOB
from ftcore.states.master import MASTER
from ftcore.states.node import NODE
from ftcore.states.table import Machine
from ftcore.states.worker import WORKER

MACHINES = (JOB, MASTER, AGENT, WORK, NODE, WORKER, INCIDENT, DISRUPTION, DATA)
"""All machines."""

LABEL_LINES = 4
"""Most triggers drawn on one arrow; the table has all of them."""


def to_mermaid(machine: Machine) -> str:
    """A Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {machine.initial}"]
    for (source, target), text in _arrows(machine, "<br/>"):
        lines.append(f"    {source} --> {target} : {text}")
    lines += [f"    {state} --> [*]" for state in machine.states if state in machine.finals]
    return "\n".join(lines) + "\n"


def to_dot(machine: Machine) -> str:
    """A Graphviz digraph."""
    lines = [f"digraph {machine.name} {{", "    rankdir=LR", '    node [shape=box, style=rounded, fontname="sans"]']
    lines.append('    start [shape=point, label=""]')
    lines += [f'    "{state}" [peripheries=2]' for state in machine.states if state in machine.finals]
    lines.append(f'    start -> "{machine.initial}"')
    for (source, target), text in _arrows(machine, "\\n"):
        lines.append(f'    "{source}" -> "{target}" [label="{text}"]')
    return "\n".join([*lines, "}"]) + "\n"


def _arrows(machine: Machine, newline: str) -> list[tuple[tuple[str, str], str]]:
    """Source and target of each arrow, with its label."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in machine.rows:
        trigger = f"{row.trigger} [{row.guard}]" if row.guard else row.trigger
        found.setdefault((str(row.source), str(row.target)), []).append(trigger)
    return [(ends, label(triggers, newline)) for ends, triggers in found.items()]


def label(triggers: Sequence[str], newline: str) -> str:
    """The text of an arrow: the first ``LABEL_LINES`` triggers, and how many more there are."""
    more = [f"and {len(triggers) - LABEL_LINES} more"] if len(triggers) > LABEL_LINES else []
    return newline.join([*triggers[:LABEL_LINES], *more])
