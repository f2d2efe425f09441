"""Drawing: Mermaid and Graphviz text, written from the very rows that run.

Machines are drawn with all their rows. The flow of a job is drawn for reading: what leads from many phases to one is
one arrow, and each phase names its timers.

The renderers read rows rather than ``transitions`` machines: they are shorter so, need no package, and can show what a
``transitions`` machine does not hold: states that are final on purpose, and the order of guards.
"""

from collections.abc import Collection, Iterator

from ftcore.states.agent import AGENT, WORK
from ftcore.states.incident import INCIDENT
from ftcore.states.job import JOB, LIVING, JobPhase
from ftcore.states.master import MASTER
from ftcore.states.node import NODE
from ftcore.states.table import Machine
from ftcore.states.timers import TIMERS, Timer
from ftcore.states.worker import WORKER

MACHINES = (JOB, MASTER, AGENT, WORK, NODE, WORKER, INCIDENT)
"""Every machine there is."""

LABEL_LINES = 4
"""Triggers drawn on one arrow; more are in the table."""

MANY = 5
"""So many phases that lead to one by the same trigger share an arrow; a timer of so many is not drawn in each."""


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


def job_flow() -> str:
    """A Mermaid flowchart of a job: its phases with their timers, and what moves it on."""
    lines = ["flowchart TD", '    start((" ")) --> assembling']
    for phase in JobPhase:
        timers = ", ".join(timer.kind for timer in timers_of(phase))
        text = f'"{phase}<br/>timers: {timers}"' if timers else f'"{phase}"'
        lines.append(f"    {phase}([{text}])" if phase in JOB.finals else f"    {phase}[{text}]")
    for number, (sources, target, label) in enumerate(_flow()):
        arrow = f'-->|"{label}"|'
        if not target:
            lines += [f"    {source} {arrow} back[/the phase before/]" for source in sources]
        elif len(sources) < MANY:
            lines += [f"    {source} {arrow} {target}" for source in sources]
        else:
            lines.append(f"    many{number}[/{named(sources)}/] {arrow} {target}")
    return "\n".join(lines) + "\n"


def timers_of(phase: JobPhase) -> list[type[Timer]]:
    """The timers that are drawn in a phase: those that few phases have."""
    return [timer for timer in TIMERS if phase in timer.phases and len(timer.phases) < MANY]


def named(phases: Collection[JobPhase], quote: str = "") -> str:
    """Phases as people read them.

    Args:
        phases: at least one.
        quote: what is put around each name.
    """
    others = [phase for phase in JobPhase if phase not in phases]
    if len(others) <= 2:
        return f"any phase but {' and '.join(f'{quote}{phase}{quote}' for phase in others)}" if others else "any phase"
    rest = [phase for phase in JobPhase if phase in phases and phase not in LIVING]
    missing = [phase for phase in LIVING if phase not in phases]
    if len(missing) > len(LIVING) - MANY:
        return ", ".join(f"{quote}{phase}{quote}" for phase in JobPhase if phase in phases)
    but = f" but {' and '.join(f'{quote}{phase}{quote}' for phase in missing)}" if missing else ""
    more = "".join(f", {quote}{phase}{quote}" for phase in rest)
    return f"any phase under way{but}{more}"


def _flow() -> Iterator[tuple[tuple[JobPhase, ...], str, str]]:
    """The arrows of the flow: where they begin, where they lead (empty: to the phase before), and their triggers."""
    sources: dict[tuple[str, str], dict[JobPhase, None]] = {}
    for row in JOB.rows:
        target = "" if row.guard == f"was {row.target}" else str(row.target)
        if row.source is not row.target:
            sources.setdefault((row.trigger, target), {})[JobPhase(row.source)] = None
    labels: dict[tuple[tuple[JobPhase, ...], str], list[str]] = {}
    for (trigger, target), found in sources.items():
        begins = [tuple(found)] if len(found) >= MANY else [(source,) for source in found]
        for begin in begins:
            labels.setdefault((begin, target), []).append(trigger)
    for (begin, target), triggers in labels.items():
        yield begin, target, "<br/>".join(triggers)
