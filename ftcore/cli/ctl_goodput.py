"""``ftctl goodput``: what the time of a job was used for, and what it cost."""

import argparse
from typing import TYPE_CHECKING

from ftcore.cli.ctl_output import console, print_json, table
from ftcore.cli.ctl_overview import read_overview
from ftcore.cli.ctl_reading import opened_reading
from ftcore.faults.taxonomy import title_of
from ftcore.replay.accounts import HOUR_S, GoodputReport
from ftcore.replay.spans import PRODUCTIVE
from ftcore.states.model import JobState
from ftcore.wording import format_elapsed, plural, utc

if TYPE_CHECKING:
    from rich.table import Table

NODES_SHOWN = 10
"""Nodes that are printed: those with the most lost time. ``--nodes`` prints all."""

INCIDENTS_SHOWN = 20

SHORT_S = 10 * HOUR_S
"""GPU-seconds below which a table shows GPU-seconds: GPU-hours would be rounded to nothing."""


async def run(args: argparse.Namespace) -> int:
    """Print the goodput of a job."""
    async with opened_reading(args) as reading:
        ledger = (await read_overview(reading, args)).ledger
    report = ledger.report()
    if args.format == "json":
        print_json({"job": ledger.state.job, "over": ledger.state.ending is not None, **report.to_json(args.price)})
    else:
        _Printer(report, args.price).print(suffix=_suffix(ledger.state), every_node=args.nodes)
    return reading.exit_code


def _suffix(state: JobState) -> str:
    if state.end_is_unknown:
        return ", the files do not show how the job ended"
    return "" if state.ending is not None else ", the job has not ended"


class _Printer:
    def __init__(self, report: GoodputReport, price: float | None) -> None:
        self._report, self._price, self._out = report, price, console()
        self._total_gpu_s = sum(report.gpu_s.values())
        self._unit = "GPU-HOURS" if self._total_gpu_s >= SHORT_S else "GPU-SECONDS"

    def print(self, *, suffix: str, every_node: bool) -> None:
        report, out = self._report, self._out
        if report.end <= report.begin:
            out.print(report.unknown)
            return
        wall, span = format_elapsed(report.wall_s), f"{_moment(report.begin)} to {_moment(report.end)} UTC"
        if report.goodput is None:
            out.print(f"goodput not known, of {wall}: {report.unknown}", style="strong")
        else:
            out.print(f"goodput {report.goodput:.2%} of {wall}", style="strong")
        out.print(f"{span}{suffix}", style="quiet")
        if report.timed:
            self._uses()
            self._causes()
        self._incidents()
        if report.timed:
            self._nodes(every_node)
        if report.mttr_s is not None and report.mtbf_s is not None:
            out.print(
                f"\nmean time between faults {format_elapsed(report.mtbf_s)} of training, mean time to the next step "
                f"after a fault {format_elapsed(report.mttr_s)}"
            )
        if not report.repeats_known:
            out.print(
                "\nThe script does not report absolute steps (ftcore.worker), so steps that were computed again count "
                "as productive.",
                style="warn",
            )

    def _gpu_time(self, gpu_s: float) -> str:
        return f"{gpu_s / HOUR_S:,.2f}" if self._unit == "GPU-HOURS" else f"{gpu_s:,.1f}"

    def _money(self, gpu_s: float) -> tuple[str, ...]:
        return () if self._price is None else (f"{gpu_s / HOUR_S * self._price:,.2f}",)

    def _table_of(self, *headers: str, flexible: tuple[str, ...] = ()) -> "Table":
        priced = () if self._price is None else ("COST",)
        shown = (*headers, *priced)
        numbers = ("SHARE", "TIME", self._unit, "COST", "INCIDENTS", "LOST STEPS", "FAULTS", "PRODUCTIVE", "IDLE")
        return table("", *shown, right=tuple(each for each in shown if each in numbers), flexible=flexible)

    def _uses(self) -> None:
        report = self._report
        self._out.print()
        rows = self._table_of("USE", "SHARE", "TIME", self._unit)
        for use, seconds in report.seconds.items():
            gpu_s = report.gpu_s[use]
            cells = (use, f"{seconds / report.wall_s:.2%}", format_elapsed(seconds), self._gpu_time(gpu_s))
            rows.add_row("", *cells, *self._money(gpu_s), style="good" if use == PRODUCTIVE else "")
        total = ("total", "100.00%", format_elapsed(report.wall_s), self._gpu_time(self._total_gpu_s))
        rows.add_row("", *total, *self._money(self._total_gpu_s), style="strong")
        self._out.print(rows)

    def _causes(self) -> None:
        if not self._report.causes:
            return
        self._out.print("\nLost time by cause", style="strong")
        rows = self._table_of("CAUSE", "INCIDENTS", "TIME", self._unit, flexible=("CAUSE",))
        for cause in self._report.causes:
            name = title_of(cause.cause, "") if cause.cause else "no incident: start, idle time"
            cells = (
                name,
                str(cause.incident_count or "-"),
                format_elapsed(cause.total_s),
                self._gpu_time(cause.gpu_s),
            )
            rows.add_row("", *cells, *self._money(cause.gpu_s))
        self._out.print(rows)

    def _incidents(self) -> None:
        worst = sorted(self._report.incidents, key=lambda cost: -cost.total_s)[:INCIDENTS_SHOWN]
        if not worst:
            return
        self._out.print("\nIncidents, the most expensive first", style="strong")
        rows = self._table_of(
            "ID", "CLASS", "TIME", self._unit, "LOST STEPS", "SPENT ON", flexible=("SPENT ON", "CLASS")
        )
        for cost in worst:
            largest = sorted(cost.seconds.items(), key=lambda item: -item[1])[:3]
            spent = ", ".join(f"{use} {format_elapsed(seconds)}" for use, seconds in largest)
            lost = "-" if cost.steps_lost is None else str(cost.steps_lost)
            cells = (cost.id, cost.cls, format_elapsed(cost.total_s), self._gpu_time(cost.gpu_s), lost, spent)
            rows.add_row("", *cells, *self._money(cost.gpu_s))
        self._out.print(rows)
        self._left_out(len(self._report.incidents) - len(worst), "incident")

    def _nodes(self, every: bool) -> None:
        nodes = self._report.nodes
        if not nodes or (len(nodes) == 1 and not every):
            return
        worst = nodes if every else sorted(nodes, key=lambda each: (-each.fault_count, -each.seconds["idle"]))
        shown = worst if every else worst[:NODES_SHOWN]
        self._out.print(f"\nNodes{'' if every else ', those where faults began first'}", style="strong")
        rows = self._table_of("NODE", "TIME", "PRODUCTIVE", "IDLE", "FAULTS", self._unit)
        for each in shown:
            gpu_s = each.total_s * each.slots
            share = f"{each.seconds[PRODUCTIVE] / each.total_s:.2%}" if each.total_s else "-"
            cells = (each.node, format_elapsed(each.total_s), share, format_elapsed(each.seconds["idle"]))
            rows.add_row("", *cells, str(each.fault_count), self._gpu_time(gpu_s), *self._money(gpu_s))
        self._out.print(rows)
        self._left_out(len(nodes) - len(shown), "node")

    def _left_out(self, count: int, noun: str) -> None:
        if count > 0:
            self._out.print(f"  and {plural(count, noun)} more; --format json has all", style="quiet")


def _moment(time_ns: int) -> str:
    return utc(time_ns)[:19].replace("T", " ")
