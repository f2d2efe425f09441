"""``ftctl whatif``: estimates the cost of another policy in the incidents of a recorded job."""

import argparse
from typing import Any

from ftcore.cli.ctl_output import console, print_json, table
from ftcore.cli.ctl_reading import opened_reading
from ftcore.cli.ctl_simulate import policy_of
from ftcore.policies.assumed import assumption_note, read_assumed
from ftcore.sim.cost import Costs, unknown_costs
from ftcore.sim.profiles import profile
from ftcore.sim.whatif.compare import Compared, WhatIf
from ftcore.sim.whatif.prices import Price
from ftcore.wording import NO_POLICY, format_elapsed, plural


async def run(args: argparse.Namespace) -> int:
    """Decide the incidents of the log again with another chain, and print both costs."""
    other = policy_of(args.policy)
    assumed = read_assumed(args.assume) if args.assume is not None else ()
    costs, reader = Costs(), WhatIf(other, assumed=assumed)
    if args.profile is not None:
        known = profile(args.profile)
        costs = costs.changed(known.costs, known.name)
        reader = WhatIf(other, costs, (known.device_share, known.name), assumed)
    async with opened_reading(args) as reading:
        await reading.feed(reader)
    compared = reader.compared()
    if args.format == "json":
        print_json(
            {
                **({"assumed": list(assumed)} if assumed else {}),
                "recorded_source": reader.recorded_source,
                "other_source": other.source,
                "not_asked": list(reader.not_asked),
                "hints": [reader.unable] if reader.unable else [],
                "incidents": [one.to_json() for one in compared],
                "totals": _total(compared),
            }
        )
    else:
        if assumed:
            console().print(assumption_note(assumed), style="warn")
        _print(compared, reader.recorded_source, other.source)
        console().print(unknown_costs(costs), style="quiet")
        if reader.unable:
            console().print(f"\n{reader.unable}", style="warn")
        if reader.not_asked:
            console().print(
                f"assumed to pass, because only a master can ask them: {', '.join(reader.not_asked)}", style="quiet"
            )
    return reading.exit_code


def _total(compared: list[Compared]) -> dict[str, Any]:
    def added(prices: list[Price]) -> dict[str, float]:
        return {
            "seconds": round(sum(price.seconds for price in prices), 3),
            "steps_lost": round(sum(price.steps_lost for price in prices), 3),
            "total": round(sum(price.total for price in prices), 3),
        }

    return {
        "recorded": added([one.recorded for one in compared]),
        "other": added([one.other for one in compared]),
    }


def _print(compared: list[Compared], recorded: str, other: str) -> None:
    out = console()
    out.print(f"recorded: {recorded}; other: {other}", style="strong")
    numbers = ("TOOK", "LOST", "WOULD TAKE", "WOULD LOSE")
    rows = table(
        "ID",
        "CLASS",
        "RECORDED",
        "TOOK",
        "LOST",
        "OTHER",
        "WOULD TAKE",
        "WOULD LOSE",
        "FROM",
        right=numbers,
        flexible=("RECORDED", "OTHER", "FROM"),
        spare=("FROM", "LOST", "WOULD LOSE", "CLASS"),
    )
    for one in compared:
        rows.add_row(
            one.id,
            one.cls,
            _policies(one.recorded),
            format_elapsed(one.recorded.seconds),
            _steps(one.recorded),
            _policies(one.other),
            format_elapsed(one.other.seconds),
            _steps(one.other),
            one.other.source,
        )
    out.print(rows)
    total = _total(compared)
    before, after = total["recorded"], total["other"]
    out.print(
        f"\ntotal loss: {format_elapsed(before['total'])} as recorded, {format_elapsed(after['total'])} expected with "
        f"{other} (downtime {format_elapsed(before['seconds'])} and {format_elapsed(after['seconds'])}, repeated steps "
        f"{before['steps_lost']:,.0f} and {after['steps_lost']:,.0f})"
    )


def _policies(price: Price) -> str:
    """Policies in order; a policy that is reached only if others fail is shown with its probability."""
    counted: dict[str, list[float]] = {}
    for policy, chance in price.policies:
        counted.setdefault(policy, []).append(chance)
    names = []
    for policy, chances in counted.items():
        times = f" x{len(chances)}" if len(chances) > 1 else ""
        likely = f" ({chances[0]:.0%})" if chances[0] < 1 else ""
        names.append(f"{policy}{times}{likely}")
    return ", ".join(names) or NO_POLICY


def _steps(price: Price) -> str:
    return plural(round(price.steps_lost), "step") if price.steps_lost else "-"
