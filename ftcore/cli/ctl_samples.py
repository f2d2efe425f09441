"""``ftctl samples``: which samples a job trained on, from its log."""

import argparse
from typing import Any

from ftcore.cli.ctl_output import console, print_json, table
from ftcore.cli.ctl_reading import opened_reading
from ftcore.replay.samples import SampleLedger
from ftcore.wording import listed, plural, printable

ROWS = 40
"""Epochs, and ranges that were left out, that are printed: the newest. JSON has all of them."""


async def run(args: argparse.Namespace) -> int:
    """Print the ledger of the samples; 1 if any were lost or used twice."""
    ledger = SampleLedger()
    async with opened_reading(args) as reading:
        await reading.feed(ledger)
    if args.format == "json":
        print_json({"job": ledger.state.job, **ledger.to_json()})
    else:
        _print(ledger)
    return reading.exit_code if ledger.is_exact else 1


def _print(ledger: SampleLedger) -> None:
    out, order, queues = console(), ledger.order, ledger.queues
    for name, queue in queues.items():
        _print_queue(name, queue)
    if order is None:
        if not queues:
            out.print("the job has reported no position in its data: scripts that load it with ftcore.data do")
        return
    shuffled = f"shuffled with seed {order.seed}" if order.shuffle else "in their own order"
    out.print(f"{order.size:,} samples, {shuffled}; {plural(order.batch, 'sample')} a step", style="strong")
    rows = table("EPOCH", "USED", "LEFT OUT", "TO COME", right=("EPOCH", "USED", "LEFT OUT", "TO COME"))
    for each in ledger.epochs()[-ROWS:]:
        rows.add_row(str(each.epoch), f"{each.used:,}", f"{each.left_out:,}", f"{each.to_come:,}")
    out.print(rows)
    if ledger.left_out:
        out.print("\nleft out:")
    for one in ledger.left_out[-ROWS:]:
        out.print(printable(f"  {_places(one.first, one.after, order.size)}: event {one.seq}: {one.reason}"))
    if not ledger.discrepancies:
        out.print("\neach of the others was used once", style="good")
    for wrong in ledger.discrepancies:
        what = "no step trained on" if wrong.kind == "lost" else "steps before had trained on"
        places = _places(wrong.first, wrong.after, order.size)
        out.print(
            f"\nafter step {wrong.step} the data did not continue where it was (event {wrong.seq}): {what} {places}",
            style="bad",
        )


def _print_queue(name: str, queue: dict[str, Any]) -> None:
    out = console()
    what = f"{queue['samples']:,} samples" if queue["samples"] else f"{queue['data_shards']:,} data shards"
    size = f" in {plural(queue['data_shards'], 'data shard')} of {queue['size']:,}" if queue["samples"] else ""
    shuffled = f"shuffled with seed {queue['seed']}" if queue["shuffle"] else "in their own order"
    out.print(printable(f"queue {name}: {what}{size}, {shuffled}"), style="strong")
    rows = table("EPOCH", "USED", "TO COME", right=("EPOCH", "USED", "TO COME"))
    for each in queue["epochs"][-ROWS:]:
        rows.add_row(str(each["epoch"]), f"{each['used']:,}", f"{each['to_come']:,}")
    out.print(rows)
    for each in queue["returned"][-ROWS:]:
        out.print(
            f"  round {each['round']} continued after step {each['step']} (event {each['seq']}): "
            f"{each['leased']:,} unfinished and {each['done']:,} later data shards returned"
        )
    if queue["refused"]:
        events = listed([str(seq) for seq in queue["refused"]])
        out.print(f"  late reports, which do not count: events {events}")
    for each in queue["unsure"][-ROWS:]:
        out.print(
            f"what rank {each['rank']} used after step {each['after']}, up to step {each['step']}, is not known: "
            f"it may have been used twice (event {each['seq']})",
            style="bad",
        )
    for each in queue["discrepancies"][-ROWS:]:
        what = "were used twice" if each["kind"] == "repeated" else "were taken for done, and not used"
        out.print(f"data shards from place {each['first']:,} to {each['after'] - 1:,} {what}", style="bad")
    if not queue["unsure"] and not queue["discrepancies"]:
        out.print("each of them was used once\n", style="good")


def _places(first: int, after: int, size: int) -> str:
    epoch, place = divmod(first, size)
    return f"{plural(after - first, 'sample')} from place {place:,} of epoch {epoch + 1} on"
