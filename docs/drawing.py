"""Mermaid diagrams of the reference pages: rows from many states to one share an arrow; phases list their timers.

``ftcore.states.drawing`` draws every row on its own.
"""

from collections.abc import Collection, Iterator, Sequence

from ftcore.states.drawing import label
from ftcore.states.job import JOB, LIVING, JobPhase
from ftcore.states.table import Machine
from ftcore.states.timers import TIMERS, Timer

NAMES_A_LINE = 2
"""Names of states on one line of a box."""

MANY = 5
"""From this number of source states on, rows share an arrow; a timer of that many phases is not drawn."""


def to_mermaid_grouped(machine: Machine) -> str:
    """A Mermaid state diagram in which transitions from many states to one share an arrow."""
    lines = ["stateDiagram-v2", f"    [*] --> {machine.initial}"]
    for number, (sources, target, triggers) in enumerate(_grouped(machine)):
        end, begins = target or "previous", sources
        if not target:
            lines.append('    state "the previous state" as previous')
        if len(sources) >= MANY:
            lines.append(f'    state "{_lines_of(sources)}" as many{number}')
            begins = (f"many{number}",)
        lines += [f"    {begin} --> {end} : {label(triggers, '<br/>')}" for begin in begins]
    lines += [f"    {state} --> [*]" for state in machine.states if state in machine.finals]
    return "\n".join(lines) + "\n"


def _lines_of(names: Sequence[str]) -> str:
    """Names, ``NAMES_A_LINE`` on each line."""
    starts = range(0, len(names), NAMES_A_LINE)
    return ",<br/>".join(", ".join(names[start : start + NAMES_A_LINE]) for start in starts)


def job_flow() -> str:
    """A Mermaid flowchart of a job: its phases with their timers, and its transitions."""
    lines = ["flowchart TD", '    start((" ")) --> assembling']
    for phase in JobPhase:
        timers = ", ".join(timer.kind for timer in timers_of(phase))
        text = f'"{phase}<br/>timers: {timers}"' if timers else f'"{phase}"'
        lines.append(f"    {phase}([{text}])" if phase in JOB.finals else f"    {phase}[{text}]")
    for number, (sources, target, triggers) in enumerate(_flow()):
        arrow = f'-->|"{triggers}"|'
        if not target:
            lines += [f"    {source} {arrow} back[/the phase before/]" for source in sources]
        elif len(sources) < MANY:
            lines += [f"    {source} {arrow} {target}" for source in sources]
        else:
            lines.append(f"    many{number}[/{named(sources)}/] {arrow} {target}")
    return "\n".join(lines) + "\n"


def timers_of(phase: JobPhase) -> list[type[Timer]]:
    """The timers that are drawn in a phase: those of fewer than ``MANY`` phases."""
    return [timer for timer in TIMERS if phase in timer.phases and len(timer.phases) < MANY]


def named(phases: Collection[JobPhase], quote: str = "") -> str:
    """Phases as text, shortened to "any phase but ..." where many are given.

    Args:
        phases: at least one.
        quote: quotation mark around each name.
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
    """The arrows of the flow: source phases, target (empty: the phase before), and triggers."""
    for sources, target, triggers in _grouped(JOB):
        phases = tuple(JobPhase(source) for source in sources if source != target)
        if phases:
            yield phases, target, "<br/>".join(triggers)


def _grouped(machine: Machine) -> Iterator[tuple[tuple[str, ...], str, list[str]]]:
    """Arrows: source states, target (empty: the previous state), and triggers.

    Source states share an arrow if at least ``MANY`` of them lead to one target by the same triggers.
    """
    sources: dict[tuple[str, str], dict[str, None]] = {}
    for row in machine.rows:
        back = row.guard == f"was {row.target}"
        trigger = f"{row.trigger} [{row.guard}]" if row.guard and not back else row.trigger
        sources.setdefault((trigger, "" if back else str(row.target)), {})[str(row.source)] = None
    arrows: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for (trigger, target), found in sources.items():
        for begin in [tuple(found)] if len(found) >= MANY else [(source,) for source in found]:
            arrows.setdefault((begin, target), []).append(trigger)
    for (begin, target), triggers in arrows.items():
        yield begin, target, triggers
