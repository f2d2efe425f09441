"""Speed of folding and verifying a log on one core.

The logs are made with ``testing.JobDriver``, so every decision in them is the production engine's. The rates are
compared with those of decoding the same bytes: by ftcore into typed events, by msgspec and by the standard library into
plain values. Decoding is the limit of any replay from bytes. A quick run prints and does not change RESULTS.md.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence

import attrs
import msgspec
from results import spread, table, write

from ftcore.events.codec import decode, encode
from ftcore.events.envelope import Event
from ftcore.events.job import JobProgressed
from ftcore.policies.file.config import default_chain
from ftcore.replay import fold_log, verify
from ftcore.sim.responder import stepped
from ftcore.states.model import JobState, digest
from ftcore.testing.driver import JobDriver

EVENTS = 100_000
QUICK_EVENTS = 10_000
TARGET = 100_000
"""Target in folded events per second: a new master then takes half a second for a log of 50,000 events."""

SLOTS = 8
LIMITS = ("limit: msgspec alone", "limit: json.loads alone")
TAIL = "RuntimeError: NCCL communicator was aborted on rank 3\n" * 4


@attrs.frozen
class Mix:
    """A log to measure.

    Args:
        name: name in the table.
        bodies: its encoded events.
        state: digest of the engine's state after them.
    """

    name: str
    bodies: list[bytes]
    state: str

    @property
    def mean_bytes(self) -> float:
        return sum(map(len, self.bodies)) / len(self.bodies)


def steady(events: int, nodes: int = 8) -> JobDriver:
    """A job that runs and reports progress: small facts, few decisions."""
    driver = JobDriver(nodes=nodes, slots=SLOTS)
    driver.start()
    while len(driver.events) < events:
        driver.step += 1
        driver.own(JobProgressed(round=driver.state.rounds.newest, step=driver.step, loss=2.5))
        for node in driver.state.membership.alive():
            driver.say(node.node, stepped(node, driver.step))
    return driver


def recovering(events: int, nodes: int = 8) -> JobDriver:
    """A job that recovers again and again: a worker dies, all stop, a new round starts and steps, the next one dies."""
    driver = JobDriver(nodes=nodes, slots=SLOTS, policy=default_chain(max_restarts=1000), tick_s=0.2)
    driver.start()
    number = 0
    while len(driver.events) < events:
        driver.fail(f"node{number % nodes}", local_rank=number % SLOTS, exitcode=-9, tail=TAIL)
        driver.settle()
        assert driver.state.phase == "running" and driver.state.incident is None, driver.state.reason()
        number += 1
    return driver


def as_mix(name: str, driver: JobDriver) -> Mix:
    return Mix(name=name, bodies=[encode(event) for event in driver.events], state=digest(driver.state))


def _rate(work: Callable[[], object], events: int) -> float:
    """Events per second of one pass over the log."""
    gc.collect()
    began = time.perf_counter()
    work()
    return events / (time.perf_counter() - began)


def _each(decoder: Callable[[bytes], object], bodies: Sequence[bytes]) -> None:
    for body in bodies:
        decoder(body)


def _fold(events: Sequence[Event], mix: Mix) -> None:
    assert digest(fold_log(events)) == mix.state


def _fold_bytes(mix: Mix) -> JobState:
    return fold_log(map(decode, mix.bodies))


def _verify(events: Sequence[Event], mix: Mix) -> None:
    report = verify(events)
    assert report.ok and report.complete and report.digest == mix.state


def measure(mix: Mix, repeats: int) -> dict[str, list[float]]:
    """Return the rates in events per second; each repeat measures all of them, so that load affects them equally."""
    events = [decode(body) for body in mix.bodies]
    raw = msgspec.json.Decoder()
    works: dict[str, Callable[[], object]] = {
        "fold": lambda: _fold(events, mix),
        "verify": lambda: _verify(events, mix),
        "decode": lambda: _each(decode, mix.bodies),
        "decode and fold": lambda: _fold_bytes(mix),
        LIMITS[0]: lambda: _each(raw.decode, mix.bodies),
        LIMITS[1]: lambda: _each(json.loads, mix.bodies),
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    gc.collect()
    gc.freeze()  # keeps the garbage collector from scanning the log, which is in memory only for the measurement
    for _ in range(repeats):
        for name, work in works.items():
            rates[name].append(_rate(work, len(events)))
    gc.unfreeze()
    return rates


def _rows(mix: Mix, rates: dict[str, list[float]]) -> list[list[str]]:
    middle = {name: statistics.median(values) for name, values in rates.items()}
    limits = [middle[LIMITS[0]], middle[LIMITS[1]]]
    return [
        [mix.name, name, spread(values, "k/s", 1e-3), *(f"{middle[name] / limit:.2f}" for limit in limits)]
        for name, values in rates.items()
    ]


def _verdict(mix: Mix, rates: dict[str, list[float]]) -> str:
    folded = statistics.median(rates["fold"])
    met = "met" if folded >= TARGET else "MISSED"
    return f"- {mix.name}: {folded:,.0f} events/s folded; target {TARGET:,}: {met} ({folded / TARGET:.2f} of it)."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events and fewer repeats")
    quick = parser.parse_args().quick
    events, repeats = (QUICK_EVENTS, 2) if quick else (EVENTS, 5)
    mixes = (
        as_mix("steady, 8 nodes", steady(events)),
        as_mix("recoveries, 8 nodes", recovering(events)),
        as_mix("recoveries, 256 nodes", recovering(events, nodes=256)),
    )
    rows: list[list[str]] = []
    verdicts: list[str] = []
    for mix in mixes:
        rates = measure(mix, repeats)
        rows += _rows(mix, rates)
        verdicts.append(_verdict(mix, rates))
    sizes = ", ".join(f"{mix.name}: {len(mix.bodies):,} events of {mix.mean_bytes:.0f} B" for mix in mixes)
    parts = [
        f"One core, {SLOTS} workers a node, logs in memory ({sizes}). Every pass checks the digest of the state it "
        "ends with. Fold and verify start from decoded events; *decode and fold* starts from bytes.",
        table(("log", "what", "events", "of msgspec", "of json.loads"), rows),
        "\n".join(verdicts),
    ]
    if quick:
        print("\n\n".join(parts))
    else:
        write("Fold and verify", "python benchmarks/fold.py", "\n\n".join(parts))


if __name__ == "__main__":
    main()
