"""The master dies at every write of a recovery, before it and right after it, and the job goes on every time.

The points are not written down by hand: each kind of recovery runs once undisturbed, and what the log then holds from
its first fact to its last is the list. A write that a later version adds is killed too. What a master's keeper does
beside its writes is killed step by step likewise.
"""

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, zip_longest
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, wait_until

from ftcore.events.codec import encode
from ftcore.events.envelope import Event

HERE = Path(__file__).parent / "killpoints"

pytestmark = pytest.mark.longer

UNMOVED = frozenset({"job.progressed", "node.reported", "node.warmed"})
"""Facts that come at their own time, in and out of recoveries: a recovery that names none has nothing to do
with them."""


ROUND = ("workers.stopped", "store.opened", "workers.started", "workers.stepped")
"""Facts of every recovery that ends in a new round."""


class Recovery:
    """One kind of recovery, as often as it is wanted.

    Args:
        job: the run's home.
        nodes: nodes of the new world that it ends with; 0: it ends with the incident, and no worker is touched.
        begin: brings it about.
        known: facts that it must have, or it went another way than was meant.
        common: facts that another kind has, too; killing there again is left to ``make long``, as is to kill both
            before and after a fact.
        needed: the kind beside it can come only behind this one.
        ends: the event that ends one without a new world.
        steps: the ranks make steps afterwards.
    """

    def __init__(
        self,
        job: Ftrun,
        nodes: int,
        begin: Callable[[], None],
        *known: str,
        common: Sequence[str] = ROUND,
        needed: bool = False,
        ends: str = "incident.exhausted",
        steps: bool = True,
    ) -> None:
        self.job, self.nodes, self.needed, self._begin = job, nodes, needed, begin
        self._ends, self._steps = ends, steps
        self._known, self._common = set(known), set(common)

    def run(self, point: str = "") -> list[Event]:
        """Bring it about, the master dying at ``point``; the facts of the recovery, once all ranks have stepped."""
        job = self.job
        begin = job.events.seen[-1].seq if job.events.seen else 0
        arm(job, point)
        self._begin()
        if self.nodes:
            formed = job.wait("world.formed", begin, nodes=self.nodes)
            last = job.stepped(formed.data.round, nodes=self.nodes)
            opened = [e for e in job.of("incident.opened") if e.seq > begin]
            if opened:
                last = job.wait("incident.resolved", begin)
        else:
            last = job.wait(self._ends, begin)
        if point:
            died(job, point, begin)
        if self._steps:
            job.steps_on()
        fresh = [event for event in job.events.seen if event.seq > begin]
        formed_since = [event for event in fresh if event.type == "world.formed"]
        assert len(formed_since) == bool(self.nodes), "one recovery, one new world; none where workers are left alone"
        assert len([event for event in fresh if event.type == "incident.opened"]) <= 1
        return [event for event in fresh if event.seq <= last.seq and event.kind == "fact"]

    def points(self) -> list[str]:
        """Run it undisturbed; the points at which to kill it."""
        facts = {event.type for event in self.run()} - (UNMOVED - self._known)
        assert self._known <= facts, f"the recovery went another way: {facts}"
        if os.environ.get("FTCORE_LONG_TESTS"):
            return [f"{when} {kind}" for kind in sorted(facts) for when in ("before", "after")]
        return [f"{when} {kind}" for kind, when in zip(sorted(facts - self._common), cycle(("before", "after")))]


def arm(job: Ftrun, point: str) -> None:
    """Have the master die there, once; nowhere if it is empty."""
    if point:
        print(f"the master dies {point}")
        job.drop("killpoint", point)


def died(job: Ftrun, point: str, after: int) -> Event:
    """Wait until the master has died there and another one leads."""
    wait_until(lambda: not (job.cwd / "killpoint").exists(), f"the master to reach the point `{point}`")
    return job.wait("master.elected", after)


def kill_everywhere(*recoveries: Recovery) -> None:
    """Each once undisturbed, in turn; then in turn again and again, until each was killed at all of its points."""
    lists = [recovery.points() for recovery in recoveries]
    for points in zip_longest(*lists, fillvalue=""):
        for recovery, point in zip(recoveries, points, strict=True):
            if point or recovery.needed:
                recovery.run(point)


@contextlib.contextmanager
def armed(tmp_path: Path, store: str = "", **timing: float) -> Iterator[Ftrun]:
    """A run's home in which masters can be made to die; no node is given up because the machine is busy."""
    with ftrun(tmp_path, store, {"node_lease_s": 30.0, **timing}) as made:
        made.env["KILLPOINT"] = str(made.cwd / "killpoint")
        made.env["PYTHONPATH"] = f"{HERE}:{made.env.get('PYTHONPATH', '')}"
        yield made


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with armed(tmp_path) as made:
        yield made


def policy(job: Ftrun, text: str) -> str:
    """The flag for a policy file with this text."""
    path = job.cwd / "policy.yaml"
    path.write_text(f"version: 1\n{text}")
    return f"--policy={path}"


def ask(job: Ftrun, *wish: str) -> None:
    """Whoever is told that the master does not answer looks whether it was heard, and else asks again."""
    before, last = len(job.of("operator.commanded")), job.events.seen[-1].seq
    code = job.ftctl(*wish, "--no-wait", "--job", job.job).returncode
    if code == 3:
        job.wait("master.elected", last)
        if len(job.of("operator.commanded")) == before:
            code = job.ftctl(*wish, "--no-wait", "--job", job.job).returncode
    assert code in (0, 3)


@pytest.mark.timeout(400)
def test_processes_restarted(job: Ftrun) -> None:
    """A worker fails: stop, new store, new world, start, first step."""
    run = job.start("--nproc-per-node", "2", "--max-restarts", "1000")
    job.stepped(1)
    kill_everywhere(Recovery(job, 1, lambda: job.do(1, "sys.exit(3)"), "worker.failed", *ROUND, common=()))
    job.finish()
    assert run.end() == 0


@pytest.mark.timeout(400)
def test_a_node_replaced_by_order(job: Ftrun) -> None:
    """An operator evicts a node: order to the platform, its answer, a new node, it is warm, stop, a new world."""
    flag = policy(job, "chain:\n- pod_replacement: {max_replacements: 1000}\n- stop\n")
    run = job.start("--local-nodes", "2", "--platform", "local:?fill=no", flag)
    job.stepped(1, nodes=2)

    def evict() -> None:
        newest = [event.data.node for event in job.of("node.joined") if event.data.node.startswith("node1")][-1]
        ask(job, "evict", newest)

    known = ("operator.commanded", "platform.answered", "node.joined", "node.warmed", *ROUND)
    kill_everywhere(Recovery(job, 2, evict, *known))
    job.finish()
    assert run.end() == 0


SIZES = """\
chain:
- shrink: {max_shrinks: 1000, node_faults: 0}
- grow: {every: 0s, steady: 0s, reserve: 0}
- stop
"""


@pytest.mark.timeout(400)
def test_a_world_that_shrinks_and_grows(job: Ftrun) -> None:
    """A node leaves and the other goes on alone; another one comes, and both train."""
    flags = ["--nnodes=1:2", "--node-rank=0", policy(job, SIZES)]
    first = job.start(*flags, "--node-id=a")
    flags[1] = "--node-rank=1"
    others = [job.start(*flags, "--node-id=b")]
    job.stepped(1, nodes=2)

    def leave() -> None:
        others[-1].signal(signal.SIGTERM)
        assert others[-1].end() == 5

    def come() -> None:
        others.append(job.start(*flags, "--node-id=b"))

    shrink = Recovery(job, 1, leave, "node.left", *ROUND, needed=True)
    grow = Recovery(job, 2, come, "node.joined", *ROUND, needed=True)
    kill_everywhere(shrink, grow)
    job.finish()
    assert [first.end(), others[-1].end()] == [0, 0]


CHECKED = """\
job: {health: suspect}
chain:
- process_restart: {max_restarts: 1000}
- stop
"""


@pytest.mark.timeout(400)
def test_health_checks(job: Ftrun) -> None:
    """A run begins with a check of its node, and checks it again after a fault that may be the node's; run by run."""
    flag, runs = policy(job, CHECKED), []

    def begin() -> None:
        if runs:
            job.finish()
            assert runs[-1].end() == 0
            (job.cwd / "finish").unlink()
        runs.append(job.start(flag))

    start = Recovery(
        job, 1, begin, "job.submitted", "node.joined", "health.checked", *ROUND[1:],
        common=(*ROUND, "node.joined", "policy.loaded"),  # the policy comes in one group with the submission
    )  # fmt: skip
    suspect = Recovery(
        job, 1, lambda: job.do(0, "os.kill(os.getpid(), 9)"), "worker.failed", "health.checked", *ROUND,
        common=(*ROUND, "worker.failed"),
    )  # fmt: skip
    kill_everywhere(start, suspect)
    job.finish()
    assert runs[-1].end() == 0


BACK = """\
job: {abilities: [rollback]}
chain:
- rollback_and_skip: {on: [loss-nan], back: latest, skip: 0, max_rollbacks: 1000}
- stop
"""


@pytest.mark.timeout(400)
def test_a_rollback(job: Ftrun) -> None:
    """A loss is no number any more: back to the last checkpoint."""
    run = job.start(policy(job, BACK))
    job.stepped(1)

    def spoil() -> None:
        last = job.events.seen[-1].seq
        job.do(0, "from ftcore.worker import saved; saved(step)")
        job.wait("checkpoint.committed", last)
        job.do(0, "report(step, loss=float('nan'))")

    kill_everywhere(Recovery(job, 1, spoil, "checkpoint.committed", "fault.observed", *ROUND))
    assert len(job.of("job.rolled_back")) == len(job.of("fault.observed"))
    job.finish()
    assert run.end() == 0


IN_PLACE = """\
job: {replicas: all, abilities: [pause, save]}
chain:
- step_pause
- dying_checkpoint: {max_saves: 1000}
- process_restart: {max_restarts: 1000}
- stop
"""


@pytest.mark.timeout(400)
def test_orders_in_place(job: Ftrun) -> None:
    """Workers are told to pause, and survivors to save, which these cannot: the job trains on, or restarts without."""
    job.env["EVERY_ABILITY"] = "1"
    run = job.start(policy(job, IN_PLACE), "--nproc-per-node=2")
    job.stepped(1)
    pause = Recovery(job, 0, lambda: ask(job, "pause"), "operator.commanded", "order.refused")
    save = Recovery(
        job, 1, lambda: job.do(1, "sys.exit(3)"), "worker.failed", "order.refused", *ROUND,
        common=(*ROUND, "worker.failed"),
    )  # fmt: skip
    kill_everywhere(pause, save)
    job.finish()
    assert run.end() == 0


@pytest.mark.timeout(400)
def test_a_pause_and_its_end(job: Ftrun) -> None:
    """Between any two writes of a pause the next master goes on with it: the job is paused, and goes on when told."""
    job.drop("boundary", "")
    run = job.start(policy(job, IN_PLACE), "--nproc-per-node=2")
    job.stepped(1)
    pause = Recovery(
        job, 0, lambda: ask(job, "pause"), "operator.commanded", "order.obeyed",
        needed=True, ends="incident.resolved", steps=False,
    )  # fmt: skip
    resume = Recovery(
        job, 0, lambda: ask(job, "resume"), "operator.commanded", "order.obeyed", needed=True, ends="incident.resolved"
    )
    kill_everywhere(pause, resume)
    job.finish()
    assert run.end() == 0
    assert len(job.of("world.formed")) == 1


# --- the keeper ------------------------------------------------------------------------------------------------------

STEPS = ("save_snapshot", "record_snapshot", "add_piece", "name_piece", "truncate")
"""See ``killpoints/sitecustomize.py``."""

LAST_PARTS = {"after record_snapshot", "after name_piece"}
"""Each leaves behind what the step around it does, too; killing there again is left to ``make long``."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", ["sqlite", pytest.param("etcd", marks=[pytest.mark.etcd, pytest.mark.long])])
def test_a_log_that_is_kept_small(tmp_path: Path, backend: str, longer: bool, request: pytest.FixtureRequest) -> None:
    """A snapshot is made, a piece is archived, the live log is cut: wherever the master dies, no event is lost, twice
    there or changed, the next one goes on with the same work, and no worker notices."""
    store = request.getfixturevalue("etcd").url(uuid.uuid4().hex) if backend == "etcd" else ""
    with armed(tmp_path, store, progress_sample_s=0.05) as job:
        small = ("--archive", str(tmp_path / "archive"), "--snapshot-events", "10", "--keep-events", "5")
        run = job.start(*small)
        last = job.stepped(1).seq
        for step in STEPS:
            if backend == "sqlite" and step == "record_snapshot":
                continue  # it is saved and recorded in one transaction
            for point in (f"before {step}", f"after {step}"):
                if longer or point not in LAST_PARTS:
                    arm(job, point)
                    last = died(job, point, last).seq
        last = job.wait("archive.extended", last).seq
        job.wait("archive.extended", last)
        job.finish()
        assert run.end() == 0
        assert len(job.of("world.formed")) == 1
        whole = job.events.read()
        seen = job.events.seen
        assert [encode(event) for event in whole[: len(seen)]] == [encode(event) for event in seen]
        told = job.ftctl("events", "--format", "json", "--job", job.job).stdout.splitlines()
        assert len(told) == len(whole) == whole[-1].seq
        assert job.ftctl("replay", "--verify", "--job", job.job).returncode == 0
