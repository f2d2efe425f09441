"""Drawing: Mermaid and Graphviz text, written from the very rows that run.

The renderers read rows rather than ``transitions`` machines: they are shorter so, need no package, and can show what a
``transitions`` machine does not hold: states that are final on purpose, and the order of guards.
"""

from ftcore.states.agent import AGENT
from ftcore.states.incident import INCIDENT
from ftcore.states.job import JOB
from ftcore.states.master import MASTER
from ftcore.states.node import NODE
from ftcore.states.table import Machine
from ftcore.states.worker import WORKER

MACHINES = (JOB, MASTER, AGENT, NODE, WORKER, INCIDENT)
"""Every machine there is."""

LABEL_LINES = 4
"""Triggers drawn on one arrow; more are in the table."""


def to_mermaid(machine: Machine) -> str:
    """A Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {machine.initial}"]
    for (source, target), label in _arrows(machine, "<br/>"):
        lines.append(f"    {source} --> {target} : {label}")
    lines += [f"    {state} --> [*]" for state in machine.states if state in machine.finals]
    return "\n".join(lines) + "\n"


def to_dot(machine: Machine) -> str:
    """A Graphviz digraph."""
    lines = [f"digraph {machine.name} {{", "    rankdir=LR", '    node [shape=box, style=rounded, fontname="sans"]']
    lines.append('    start [shape=point, label=""]')
    lines += [f'    "{state}" [peripheries=2]' for state in machine.states if state in machine.finals]
    lines.append(f'    start -> "{machine.initial}"')
    for (source, target), label in _arrows(machine, "\\n"):
        lines.append(f'    "{source}" -> "{target}" [label="{label}"]')
    return "\n".join([*lines, "}"]) + "\n"


def _arrows(machine: Machine, newline: str) -> list[tuple[tuple[str, str], str]]:
    """Source and target of each arrow, with what leads along it."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in machine.rows:
        label = f"{row.trigger} [{row.guard}]" if row.guard else row.trigger
        found.setdefault((str(row.source), str(row.target)), []).append(label)
    drawn = []
    for ends, labels in found.items():
        more = [f"and {len(labels) - LABEL_LINES} more"] if len(labels) > LABEL_LINES else []
        drawn.append((ends, newline.join([*labels[:LABEL_LINES], *more])))
    return drawn
