"""Schedules per minute and core of the protocol simulator, by number of nodes, and its coverage of the production
runtime.

The limit, from the same run, is the time of the production engine alone for the same facts: no simulator of the engine
can be faster. A quick run prints and does not change RESULTS.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs
from results import spread, table, write

from ftcore.engine.decide import turn
from ftcore.events.registry import Kind
from ftcore.sim.protocol.options import draw
from ftcore.sim.protocol.simulation import Simulation, collect, collecting_between
from ftcore.states.model import JobState

SEEDS = 300
QUICK_SEEDS = 30
TOGETHER = 4
"""Times as many seeds on all cores, as in a search, so that the start of the processes does not count."""
SIZES = (None, 8, 50)
PARTS = (
    "runtime/master",
    "runtime/agent/agent",
    "runtime/agent/link/link",
    "runtime/agent/link/outbox",
    "engine/agent.py",
    "engine/agent_workers.py",
)
"""Path prefixes of the modules that should run in the simulator."""


@attrs.frozen
class Measured:
    """One schedule: its seconds, those of the engine alone on the same facts, virtual seconds, frames, faults."""

    took: float
    alone: float
    virtual: float
    frames: int
    struck: int


def schedule(seed: int, nodes: int | None) -> Measured:
    """Run one schedule."""
    sim = Simulation(draw(seed, nodes))
    begun = time.perf_counter()
    sim.run()
    took = time.perf_counter() - begun
    state = JobState()
    begun = time.perf_counter()
    for event in sim.store.events:
        if event.kind is Kind.FACT:
            turn(state, event)
    alone = time.perf_counter() - begun
    return Measured(took, alone, sim.clock.now / 1e9, sim.net.frames, sim.injector.struck)


def measure(nodes: int | None, seeds: int) -> list[object]:
    """Return a row of the table."""
    runs = []
    with collecting_between():
        for seed in range(seeds):
            run = schedule(seed, nodes)
            begun = time.perf_counter()
            collect()
            runs.append(attrs.evolve(run, took=run.took + time.perf_counter() - begun))
    wall, alone = sum(run.took for run in runs), sum(run.alone for run in runs)
    return [
        nodes or "2 to 8, drawn",
        seeds,
        f"{60 * seeds / wall:,.0f}",
        spread([run.took for run in runs], "ms", 1000),
        f"{sum(run.virtual for run in runs) / wall:,.0f}",
        f"{sum(run.frames for run in runs) / wall:,.0f}",
        f"{statistics.mean(run.struck for run in runs):.1f}",
        f"{60 * seeds / alone:,.0f}",
        f"{wall / alone:.1f}",
    ]


def together(seeds: int) -> float:
    """Return schedules per minute on all cores."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "ftcore.sim", "--count", str(seeds), "--jobs", str(os.cpu_count())]
    subprocess.run(command, check=True, capture_output=True)
    return 60 * seeds / (time.perf_counter() - begun)


def executed(seeds: int) -> list[list[object]]:
    """Return table rows of the lines of the production runtime that these schedules execute."""
    with tempfile.TemporaryDirectory() as folder:
        data, report = f"{folder}/data", Path(folder) / "report.json"
        coverage = [sys.executable, "-m", "coverage"]
        run = ["run", f"--data-file={data}", "--source=ftcore", "-m", "ftcore.sim", "--count", str(seeds)]
        subprocess.run([*coverage, *run], check=True, capture_output=True)
        subprocess.run([*coverage, "json", f"--data-file={data}", "-q", "-o", str(report)], check=True)
        files = json.loads(report.read_text())["files"]
    rows: list[list[object]] = []
    for part in PARTS:
        found = [each["summary"] for path, each in files.items() if f"ftcore/{part}" in path]
        lines, hit = (sum(each[key] for each in found) for key in ("num_statements", "covered_lines"))
        rows.append([f"{part.removesuffix('.py')}{'/' if len(found) > 1 else '.py'}", lines, f"{hit / lines:.0%}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds; does not change RESULTS.md")
    quick = parser.parse_args().quick
    seeds = QUICK_SEEDS if quick else SEEDS
    rows = [measure(nodes, seeds if nodes is None else seeds // 10) for nodes in SIZES]
    head = (
        "nodes",
        "seeds",
        "schedules a minute",
        "one schedule",
        "virtual s a s",
        "frames a s",
        "faults each",
        "limit: the engine alone, a minute",
        "times the limit",
    )
    body = (
        "Every message of a job, with faults of the kinds that the seed names, all checkers, and each decision made "
        "twice (by the simulated master and by the checker of replay), on one core.\n\n" + table(head, rows)
    )
    body += f"\n\nAll cores together, {TOGETHER * seeds} seeds: {together(TOGETHER * seeds):,.0f} schedules a minute. "
    body += f"Statements that {seeds} schedules execute:\n\n"
    body += table(("of the production runtime", "statements", "executed"), executed(seeds))
    if quick:
        print(body)
    else:
        write("Protocol simulator", "python benchmarks/sim.py", body)


if __name__ == "__main__":
    main()
