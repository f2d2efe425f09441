"""Step pause: time from the request to the last waiting rank, and what a boundary costs in every step.

A DDP job that knows nothing of ftcore (``scripts/step.py``) is paused and resumed repeatedly. All times are of the
job's log. No peer pauses a CPU job in place, so a pause is compared with the job's own step, and the cost of a boundary
with that of the smallest optimizer step.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import spread, table, write

from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq
from ftcore.logs import open_store
from ftcore.shm import page
from ftcore.worker._boundary import StepBoundary

STEP = Path(__file__).with_name("scripts") / "step.py"
CALLS = 200_000
LIMIT_S = 120.0


def read(store: str) -> list[Event]:
    """Return the job's events so far."""

    async def all_events() -> list[Event]:
        opened = open_store(store)
        try:
            log = await opened.open(JobName("pauses"), create=True)
            try:
                return [event async for event in log.read(Seq(0))]
            finally:
                await log.close()
        finally:
            await opened.close()

    return asyncio.run(all_events())


def control(env: dict[str, str], command: str) -> bool:
    """Send a command and wait for its result."""
    argv = (sys.executable, "-m", "ftcore.cli.ftctl", command, "--job", "pauses")
    return subprocess.run(argv, env=env, capture_output=True, timeout=LIMIT_S, check=False).returncode == 0


def run(nodes: int, ranks: int, times: int) -> list[Event]:
    """Pause and resume one job; return its log."""
    with tempfile.TemporaryDirectory(prefix="pauses-") as root:
        env = os.environ | {"XDG_STATE_HOME": root, "OMP_NUM_THREADS": "1", "MARKS": os.devnull}
        store = f"sqlite://{root}/ftcore"
        flags = ("--job", "pauses", "--local-nodes", str(nodes), "--nproc-per-node", str(ranks))
        argv = (sys.executable, "-m", "ftcore.cli.ftrun", *flags, str(STEP))
        with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                deadline = time.monotonic() + LIMIT_S
                while sum(event.type == "workers.stepped" for event in read(store)) < nodes:
                    assert time.monotonic() < deadline and process.poll() is None, "the job makes no steps"
                    time.sleep(0.5)
                for _ in range(times):
                    time.sleep(0.5)
                    assert control(env, "pause") and control(env, "resume")
                return read(store)
            finally:
                process.send_signal(signal.SIGTERM)


def taken(events: list[Event], command: str, outcome: str) -> list[float]:
    """Seconds from each request to its fulfilment."""
    asked = [event.time for event in events if event.type == "operator.commanded" and event.data.command == command]
    done = [event.time for event in events if event.type == "incident.resolved" and event.data.outcome == outcome]
    return [next(end for end in done if end >= begin) / 1e9 - begin / 1e9 for begin in asked[-len(done) :]]


def step_s(events: list[Event]) -> float:
    """Seconds of a step while the job trains: between a resume and the next pause."""
    found = []
    resumed: tuple[int, int] | None = None
    for event in events:
        if event.type != "order.obeyed":
            continue
        if event.data.effect.startswith("resume"):
            resumed = (event.time, event.data.step)
        elif event.data.effect.startswith("find") and resumed is not None and event.data.step > resumed[1]:
            found.append((event.time - resumed[0]) / 1e9 / (event.data.step - resumed[1]))
            resumed = None
    assert found
    return float(statistics.median(found))


def call_ns() -> tuple[float, float, float]:
    """Nanoseconds of a boundary without and with a page, and of an optimizer step of one parameter."""
    import torch

    def per_call(function: object, calls: int) -> float:
        begun = time.perf_counter_ns()
        for _ in range(calls):
            function()  # type: ignore[operator]
        return (time.perf_counter_ns() - begun) / calls

    fd = page.create()
    words = page.PageWriter(fd).boundary
    on, off = StepBoundary(words, lambda _mono: None), StepBoundary(None, lambda _mono: None)
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=1e-9)
    medians = [
        statistics.median(per_call(function, calls) for _ in range(5))
        for function, calls in ((off.stepped, CALLS), (on.stepped, CALLS), (optimizer.step, CALLS // 20))
    ]
    os.close(fd)
    return medians[0], medians[1], medians[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a node")
    parser.add_argument("--times", type=int, default=10)
    args = parser.parse_args()
    off, on, optimizer = call_ns()
    events = run(args.nodes, args.ranks, args.times)
    pauses, resumes = taken(events, "pause", "paused"), taken(events, "resume", "resumed")
    step = step_s(events)
    took = [statistics.median(times) / step for times in (pauses, resumes)]
    rows = [
        ("pause: request to every rank waiting", spread(pauses, "ms", 1e3), f"{took[0]:.1f} steps"),
        ("resume: request to every rank released", spread(resumes, "ms", 1e3), f"{took[1]:.1f} steps"),
        ("a step of the job", f"{step * 1e3:.2f} ms", "1"),
        ("boundary, nothing ordered", f"{on:.0f} ns", f"{on / optimizer:.3f} of an SGD step of one number"),
        ("boundary outside ftrun", f"{off:.0f} ns", f"{off / optimizer:.3f}"),
    ]
    worlds = sum(event.type == "world.formed" for event in events)
    words = (
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. {args.nodes} nodes with {args.ranks} ranks, SQLite, "
        f"{len(pauses)} pauses; rounds: {worlds}."
    )
    command = " ".join(["python benchmarks/pauses.py", *sys.argv[1:]])
    write("Step pause", command, words + "\n\n" + table(("what", "measured", "ratio"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
