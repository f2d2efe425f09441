"""Pods on a test server: from the loss of a pod to the next step; API calls; a thousand workers.

The server (``integrations/kubernetes/tests/apiserver``) schedules and starts pods at once, so the platform's own part
(scheduling, pulling the image, starting the container) is that of no cluster. Masters, agents, workers and etcd are
real; the workers count steps without torch. The thousand pods run nothing, and the master's platform is a process of
its own.
"""

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import spread, table, write

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("integrations/kubernetes/tests", "tests")]

from apiserver.server import ApiServer  # noqa: E402
from etcd_cluster import Cluster  # noqa: E402
from ftcore_kubernetes import informer  # noqa: E402
from ftcore_kubernetes.adapter import KubernetesUrl  # noqa: E402
from ftcore_kubernetes.config import ApiConfig  # noqa: E402
from ftcore_kubernetes.job_file import TrainJob, parse  # noqa: E402
from ftcore_kubernetes.manifests import root  # noqa: E402
from ftcore_kubernetes.platform import KubernetesPlatform  # noqa: E402
from kubernetes_job import SPACE, SubmittedJob, cluster  # noqa: E402

SPEEDUP = 120
"""An idle hour is measured in half a minute, with watches that are as much shorter."""

MANY, MACHINES, SOME = 1000, 20, 100


def many(replicas: int) -> TrainJob:
    """A job of which no pod runs anything."""
    container = {"name": "train", "image": "train:1"}
    spec = {
        "command": ["train.py"],
        "replicas": replicas,
        "store": {"url": "etcd://e1:2379"},
        "template": {"spec": {"containers": [container]}},
    }
    text = json.dumps(
        {"apiVersion": "ftcore.dev/v1alpha1", "kind": "ElasticTrainJob", "metadata": {"name": "llm"}, "spec": spec}
    )
    return parse(text, "job")


async def until(condition: Callable[[], object], what: str, bound_s: float = 300.0) -> float:
    """Wait, without a burden on the server; returns the time."""
    async with asyncio.timeout(bound_s):
        while not condition():
            await asyncio.sleep(0.005)
    return time.monotonic()


def calls(server: ApiServer, before: Counter[tuple[str, str]] | None = None) -> Counter[tuple[str, str]]:
    """Requests so far, or since then."""
    return Counter(server.calls) - (before or Counter())


def said(found: Counter[tuple[str, str]]) -> str:
    """Requests as text."""
    return ", ".join(f"{count} {verb} {what}" for (verb, what), count in sorted(found.items())) or "none"


# -- from the loss of a pod to the next step


async def losses(times: int) -> tuple[dict[str, list[float]], Counter[tuple[str, str]]]:
    """Seconds of each phase, and the requests, of some losses, each in a job of its own."""
    found: dict[str, list[float]] = {"order": [], "start": [], "train": []}
    spent: Counter[tuple[str, str]] = Counter()
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as name:
            spent += await loss(Path(name), found)
    return found, spent


async def loss(place: Path, found: dict[str, list[float]]) -> Counter[tuple[str, str]]:
    """One loss; adds the seconds of its phases to ``found``, returns its requests."""
    etcd = Cluster(place / "etcd").start()
    try:
        async with cluster(place) as server:
            (place / "work").mkdir()
            job = SubmittedJob(server, etcd.url("bench"), place / "work", replicas=2)
            await job.submit()
            await job.trains(2)
            await asyncio.sleep(3.0)  # warm processes
            before = calls(server)
            more, lost = _more_pods(job, len(job.pods())), time.monotonic()
            server.cluster.end_container(SPACE, "llm-w1", 137, "OOMKilled")
            made = await until(more, "a pod")
            runs = await until(lambda: len(job.running()) == 2, "a running pod")
            stepped = await until(_more_steps(job, job.steps()), "steps")
            for phase, seconds in zip(found, (made - lost, runs - made, stepped - runs), strict=True):
                found[phase].append(seconds)
            await job.trains(2, by=50)
            spent = calls(server, before)
            job.finish()
            await job.until(lambda: not job.running(), "the end")
            await job.api.close()
            return spent
    finally:
        etcd.stop()


def _more_pods(job: SubmittedJob, count: int) -> Callable[[], bool]:
    return lambda: len(job.pods()) > count


def _more_steps(job: SubmittedJob, steps: dict[int, int]) -> Callable[[], bool]:
    return lambda: all(job.steps()[rank] > steps[rank] for rank in (0, 1))


# -- many pods, and an idle hour


async def follow(url: str, token: str) -> None:
    """The master's platform as a process: says at each line of input what it has used."""
    if "idle" in sys.argv:
        informer.WATCH_S = tuple(each // SPEEDUP for each in informer.WATCH_S)  # type: ignore[assignment,misc]
    platform = KubernetesPlatform(KubernetesUrl(SPACE, "llm"), ApiConfig(url=url, namespace=SPACE, token=token))
    events: Counter[str] = Counter()

    async def answer() -> None:
        while await asyncio.to_thread(sys.stdin.readline):
            used = resource.getrusage(resource.RUSAGE_SELF)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            told = {"cpu_s": used.ru_utime + used.ru_stime, "mib": pages * 4096 / 2**20, "events": dict(events)}
            print(json.dumps(told), flush=True)

    asking = asyncio.create_task(answer())
    async for event in platform.watch():
        events[type(event).__name__] += 1
    await asking


async def start(server: ApiServer, *more: str) -> Any:
    argv = [sys.executable, __file__, "--follow", server.url, server.access.admin_token, *more]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)


async def ask(child: Any) -> dict[str, Any]:
    child.stdin.write(b"\n")
    found: dict[str, Any] = json.loads(await child.stdout.readline())
    return found


async def thousand() -> list[tuple[str, ...]]:
    """Rows: what happened, seconds, CPU and memory of the platform, requests."""
    rows: list[tuple[str, ...]] = []
    async with ApiServer(namespaces=[SPACE], nodes=MACHINES, capacity={"pods": "200", "cpu": "4000"}) as server:
        server.objects.create(server.resource("configmaps"), SPACE, root(many(MANY), SPACE))
        pods = server.resource("pods")

        def running() -> int:
            return sum(each.object["status"].get("phase") == "Running" for each in server.store.all(pods, SPACE))

        child, spent = await start(server), calls(server)
        began, cpu_s = time.monotonic(), 0.0
        try:
            for what, number in (("create", MANY), ("replace", SOME), ("replace", MANY)):
                if what == "replace":
                    names = [each.meta["name"] for each in server.store.all(pods, SPACE)]
                    live = [
                        name for name in names if (SPACE, name) in {run.key for run in server.kubelets.runs.values()}
                    ]
                    began = time.monotonic()
                    for name in live[:number]:
                        server.cluster.evict(SPACE, name)
                    await until(lambda: running() < MANY, "ends")
                ended = await until(lambda: running() == MANY, "pods")
                used = await ask(child)
                made = calls(server, spent)
                spent = calls(server)
                row = (
                    f"{what} {number}",
                    f"{ended - began:.1f} s",
                    f"{used['cpu_s'] - cpu_s:.1f} s",
                    f"{used['mib']:.0f} MiB",
                )
                cpu_s = used["cpu_s"]
                rows.append((*row, said(made)))
                print(*rows[-1], file=sys.stderr)
        finally:
            child.kill()
            await child.wait()
    return rows


async def idle() -> Counter[tuple[str, str]]:
    """Requests of an hour in which nothing happens."""
    async with ApiServer(namespaces=[SPACE], nodes=4) as server:
        server.objects.create(server.resource("configmaps"), SPACE, root(many(8), SPACE))
        child = await start(server, "idle")
        try:
            await until(lambda: len(list(server.store.all(server.resource("pods"), SPACE))) == 8, "pods")
            await asyncio.sleep(1.0)
            before = calls(server)
            await asyncio.sleep(3600 / SPEEDUP)
            return calls(server, before)
        finally:
            child.kill()
            await child.wait()


async def measure(times: int) -> str:
    """Do it all; returns the section's text."""
    found, spent = await losses(times)
    total = [sum(each) for each in zip(*found.values(), strict=True)]
    parts = {
        "end of the container until its replacement is created (this package)": found["order"],
        "until it runs (the test server; a cluster schedules and pulls here)": found["start"],
        "until both ranks step again (agent's start, join, round)": found["train"],
        "together": total,
    }
    quiet = await idle()
    rows = await thousand()
    body = time.strftime("%Y-%m-%d. ") + "Test server, two workers without torch, one etcd; a container is killed.\n\n"
    body += table(("phase", "time"), [(what, spread(each, "s")) for what, each in parts.items()])
    each = sum(spent.values()) / times
    body += f"\n\nRequests for {times} replaced pods, without the kubelets' own: {said(spent)}; {each:.1f} for each.\n"
    body += f"Requests in an idle hour (measured at {SPEEDUP} times the speed): {said(quiet)}.\n\n"
    body += f"{MANY} pods that run nothing, on {MACHINES} machines; the platform's own process:\n\n"
    return body + table(("what", "until all run", "CPU", "memory", "requests"), rows)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--follow", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.follow:
        asyncio.run(follow(*args.follow[:2]))
        return
    body = asyncio.run(measure(args.times))
    write("Pods on Kubernetes", f"python benchmarks/kubernetes_pods.py --times {args.times}", body)


if __name__ == "__main__":
    main()
