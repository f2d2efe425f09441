"""Cost of the metrics endpoint to a job of 1,000 nodes: to the master, and of the observer's own process.

Light agents (``swarm.py``) send heartbeats to a real master with its log in etcd. Then an observer runs beside it, and
is scraped every second, fifteen times as often as usual. The limit of a rendering is ``prometheus_client`` itself: the
same number of plain gauges, in the same process. A quick run prints and does not change RESULTS.md.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from ftcore_prometheus.families import JobMetrics
from ftcore_prometheus.figures import JobFigures
from ftcore_prometheus.live import LogView
from heartbeats import timing
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from results import spread, table, write
from swarm import Field, field, usage

from ftcore import Event, ObservedMaster, ObservedNode
from ftcore.sim.campaign.simulate import CampaignRequest, simulate

NODES = 1000
SCRAPE_S = 1.0
RENDERS = 20


@attrs.frozen
class Load:
    """CPU shares of one core and memory during a measurement.

    Args:
        master: CPU share of the master.
        observer: that of the observer; 0: there was none.
        rss: memory of the observer in MiB.
        scrapes: seconds of each scrape.
        size: bytes of the last scrape.
        series: lines of the last scrape that are no comments.
    """

    master: float
    observer: float
    rss: float
    scrapes: Sequence[float]
    size: int
    series: int


def scrape(port: int) -> bytes:
    """Return the metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return bytes(answer.read())


def measured(bench: Field, seconds: float, observer: int = 0, port: int = 0) -> Load:
    """Measure for some seconds, with a scrape each second if there is an observer."""
    before, own = usage(bench.master), usage(observer).cpu_s if observer else 0.0
    began, scrapes, text = time.monotonic(), [], b""
    while time.monotonic() - began < seconds:
        at = time.monotonic()
        if observer:
            text = scrape(port)
            scrapes.append(time.monotonic() - at)
        time.sleep(max(0.0, SCRAPE_S - (time.monotonic() - at)))
    took = time.monotonic() - began
    return Load(
        master=(usage(bench.master).cpu_s - before.cpu_s) / took,
        observer=(usage(observer).cpu_s - own) / took if observer else 0.0,
        rss=usage(observer).rss / 2**20 if observer else 0.0,
        scrapes=scrapes,
        size=len(text),
        series=sum(not line.startswith(b"#") for line in text.splitlines()),
    )


def live(nodes: int, seconds: float) -> tuple[Load, Load]:
    """Return the loads without and with an observer."""
    with (
        tempfile.TemporaryDirectory() as directory,
        field(Path(directory), nodes, barrier=False, timing=timing(0.5)) as bench,
    ):
        bench.send("connect", None)
        bench.send("world", 1)
        bench.send("step", 1)
        time.sleep(5.0)
        without = measured(bench, seconds)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        url, job = bench.cluster.url("bench"), f"bench{nodes}"
        argv = [sys.executable, "-m", "ftcore.cli.ftctl", "--store", url, "--job", job]
        observer = subprocess.Popen([*argv, "observe", f"prometheus://127.0.0.1:{port}"])
        try:
            while b"ftcore_nodes_connected" not in reached(port):
                time.sleep(0.1)
            time.sleep(5.0)
            return without, measured(bench, seconds, observer.pid, port)
        finally:
            observer.kill()
            observer.wait()


def reached(port: int) -> bytes:
    """Return the metrics, or nothing while there is no endpoint."""
    try:
        return scrape(port)
    except OSError:
        return b""


def rendered(nodes: int) -> Iterator[tuple[str, int, int, Sequence[float], Sequence[float]]]:
    """Yield groups, series, bytes, seconds of a rendering, and those of as many plain gauges."""
    figures = JobFigures()

    def take(group: Sequence[Event]) -> None:
        for event in group:
            figures.feed(event)

    simulate(CampaignRequest(nodes=nodes, days=1.0, seed=1, rate=0.0065), take, verified_max=0)
    world = figures.state.rounds.world
    assert world is not None
    seen = tuple(
        ObservedNode(
            node=member.node,
            heard_s=0.2,
            round=world.round,
            step=7,
            absolute=True,
            loss=2.5,
            step_s=1.5,
            own_s=1.2,
            phase="running",
        )
        for member in world.members
    )
    master = ObservedMaster(nodes=seen, waiting=0, wait_s=0.0)
    log = LogView(read=figures.state.seq, end=figures.state.seq, readable=True)
    for groups in (128, nodes):
        metrics = JobMetrics("bench", figures, master=master, log=log, groups=groups)
        text = generate_latest(metrics)
        series = sum(not line.startswith(b"#") for line in text.splitlines())
        plain = CollectorRegistry()
        gauge = Gauge("plain", "Plain.", ["training_job", "ranks"], registry=plain)
        for number in range(series):
            gauge.labels("bench", f"{number}").set(number)
        yield f"{groups:,}", series, len(text), timed(metrics), timed(plain)


def timed(metrics: JobMetrics | CollectorRegistry) -> list[float]:
    """Return the seconds of each rendering."""
    took = []
    for _ in range(RENDERS):
        began = time.perf_counter()
        generate_latest(metrics)
        took.append(time.perf_counter() - began)
    return took


def folded(nodes: int) -> float:
    """Return events folded per second."""
    groups: list[Sequence[Event]] = []
    simulate(CampaignRequest(nodes=nodes, days=1.0, seed=1, rate=0.0065), groups.append, verified_max=0)
    figures, began = JobFigures(), time.perf_counter()
    for group in groups:
        for event in group:
            figures.feed(event)
    return sum(map(len, groups)) / (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES, help="number of agents")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each measurement")
    parser.add_argument("--quick", action="store_true", help="100 agents for 5 s; does not change RESULTS.md")
    args = parser.parse_args()
    nodes, seconds = (100, 5.0) if args.quick else (args.nodes, args.seconds)
    without, beside = live(nodes, seconds)
    rows = [
        ["master, no observer", f"{without.master:.1%} of one core"],
        ["master, with an observer that is scraped every second", f"{beside.master:.1%} of one core"],
        ["the observer's process", f"{beside.observer:.1%} of one core, {beside.rss:.0f} MiB"],
        ["a scrape", spread(beside.scrapes, "ms", 1e3)],
        ["its size", f"{beside.series:,} series, {beside.size / 1024:.0f} KiB"],
        ["events folded per second, when the observer starts", f"{folded(nodes):,.0f}"],
    ]
    drawn = [
        [groups, f"{series:,}", f"{size / 1024:.0f} KiB", spread(ours, "ms", 1e3), spread(limit, "ms", 1e3),
         f"{statistics.median(ours) / statistics.median(limit):.1f}x"]
        for groups, series, size, ours, limit in rendered(nodes)
    ]  # fmt: skip
    body = (
        f"{nodes:,} agents with a heartbeat every 0.5 s, for {seconds:g} s each:\n\n{table(['what', 'cost'], rows)}\n\n"
        "Rendering of all metrics, every rank group with every figure, in one process:\n\n"
        + table(["rank groups", "series", "size", "a rendering", "limit: plain gauges", "ratio"], drawn)
    )
    if args.quick or nodes != NODES:
        print(body)
    else:
        write("Metrics endpoint", "python benchmarks/metrics_endpoint.py", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
