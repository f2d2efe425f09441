"""``ftctl machines``: draws the state machines."""

import argparse
import difflib

from ftcore.cli.ctl_output import console, table
from ftcore.errors import UsageError
from ftcore.states.drawing import MACHINES, to_dot, to_mermaid
from ftcore.states.table import Machine


async def machines(args: argparse.Namespace) -> int:
    """Draw the state machines from their transition tables."""
    chosen = list(MACHINES)
    if args.machine is not None:
        chosen = [machine for machine in MACHINES if machine.name == args.machine]
    if not chosen:
        names = [machine.name for machine in MACHINES]
        near = difflib.get_close_matches(args.machine, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
        raise UsageError(f"no machine {args.machine!r}; {hint}")
    if args.format == "table":
        for number, machine in enumerate(chosen):
            _print(machine, first=number == 0)
    else:
        draw = to_mermaid if args.format == "mermaid" else to_dot
        print("\n".join(draw(machine) for machine in chosen))
    return 0


def _print(machine: Machine, *, first: bool) -> None:
    out = console()
    if not first:
        out.print()
    out.print(f"{machine.name}: {machine.doc}", style="strong")
    rows = table("IN", "ON", "TO", flexible=("TO",))
    for row in machine.rows:
        guard = f" if {row.guard}" if row.guard else ""
        rows.add_row(str(row.source), row.trigger, f"{row.target}{guard}")
    for entry in machine.ignored:
        for state in entry.sources:
            rows.add_row(str(state), entry.trigger, f"ignored: {entry.reason}", style="quiet")
    out.print(rows)
