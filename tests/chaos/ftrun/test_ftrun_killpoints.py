"""The master dies at every write of a recovery, before it and right after it, and the job goes on every time.

The points are not written down by hand: each kind of recovery runs once undisturbed, and what the log then holds from
its first fact to its last is the list. A write that a later version adds is killed too.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, wait_until

from ftcore.events.envelope import Event

HERE = Path(__file__).parent / "killpoints"

UNMOVED = frozenset({"job.progressed", "node.reported"})
"""Facts that come at their own time, in and out of recoveries: they have nothing to do with one."""


ROUND = ("workers.stopped", "store.opened", "workers.started", "workers.stepped")
"""Facts of every recovery that ends in a new round."""


class Recovery:
    """One kind of recovery in a running job, as often as it is wanted.

    Args:
        job: the run's home.
        nodes: nodes of the world once it is over.
        begin: brings the fault about.
    """

    def __init__(self, job: Ftrun, nodes: int, begin: Callable[[], None]) -> None:
        self.job, self.nodes, self._begin = job, nodes, begin
        self.point = job.cwd / "killpoint"
        self.round = 1

    def run(self, point: str = "") -> list[Event]:
        """Bring it about, the master dying at ``point``; the facts of the recovery, once all ranks have stepped."""
        begin = self.job.events.seen[-1].seq
        if point:
            new = self.point.with_suffix(".new")
            new.write_text(point)
            new.rename(self.point)
        self._begin()
        self.round += 1
        last = self.job.stepped(self.round, nodes=self.nodes)
        last = self.job.wait("incident.resolved", begin)
        if point:
            wait_until(lambda: not self.point.exists(), f"the master to reach the point `{point}`")
            last = self.job.wait("master.elected", begin)
        self.job.steps_on()
        assert len([e for e in self.job.of("world.formed") if e.seq > begin]) == 1, "one recovery, one new world"
        assert len([e for e in self.job.of("incident.opened") if e.seq > begin]) == 1
        return [e for e in self.job.events.seen if begin < e.seq <= last.seq and e.kind == "fact"]


def kill_everywhere(recovery: Recovery, *known: str, common: Sequence[str] = ()) -> None:
    """One undisturbed recovery, then one for each point of it.

    Args:
        recovery: the kind of recovery.
        known: facts that it must have, or it went another way than was meant.
        common: facts that another kind has, too; killing there again is left to ``FTCORE_LONG_TESTS=1``.
    """
    points = {event.type for event in recovery.run()} - UNMOVED
    assert set(known) <= points, f"the recovery went another way: {points}"
    if not os.environ.get("FTCORE_LONG_TESTS"):
        points -= set(common)
    for kind in sorted(points):
        for when in ("before", "after"):
            print(f"the master dies {when} {kind}")
            recovery.run(f"{when} {kind}")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path) as made:
        made.env["KILLPOINT"] = str(made.cwd / "killpoint")
        made.env["PYTHONPATH"] = f"{HERE}:{made.env.get('PYTHONPATH', '')}"
        yield made


@pytest.mark.timeout(300)
def test_processes_restarted(job: Ftrun) -> None:
    """A worker fails: stop, new store, new world, start, first step."""
    run = job.start("--nproc-per-node", "2", "--max-restarts", "1000")
    job.stepped(1)
    recovery = Recovery(job, 1, lambda: job.do(1, "sys.exit(3)"))
    kill_everywhere(recovery, "worker.failed", *ROUND)
    job.finish()
    assert run.end() == 0


@pytest.mark.timeout(400)
def test_a_node_replaced_by_order(job: Ftrun) -> None:
    """An operator evicts a node: stop, order to the platform, its answer, a new node, a new world."""
    policy = job.cwd / "policy.yaml"
    policy.write_text("version: 1\nchain:\n- pod_replacement: {max_replacements: 1000}\n- stop\n")
    run = job.start("--local-nodes", "2", "--platform", "local:?fill=no", "--policy", str(policy))
    job.stepped(1, nodes=2)

    def evict() -> None:
        """Whoever is told that the master does not answer looks whether it was heard, and else asks again."""
        before, last = len(job.of("operator.commanded")), job.events.seen[-1].seq
        newest = [event.data.node for event in job.of("node.joined") if event.data.node.startswith("node1")][-1]
        code = job.ftctl("evict", newest, "--no-wait", "--job", job.job).returncode
        if code == 3:
            job.wait("master.elected", last)
            if len(job.of("operator.commanded")) == before:
                code = job.ftctl("evict", newest, "--no-wait", "--job", job.job).returncode
        assert code in (0, 3)

    recovery = Recovery(job, 2, evict)
    kill_everywhere(recovery, "operator.commanded", "platform.answered", "node.joined", *ROUND, common=ROUND)
    job.finish()
    assert run.end() == 0
