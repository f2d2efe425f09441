"""A leading master with simulated agents: its answers and their timing."""

import asyncio
import queue
import re
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from ftcore import __version__
from ftcore.engine.master import DurableMark, Leases, due
from ftcore.errors import LogFull, LogUnavailable
from ftcore.events.envelope import EventId, Fact
from ftcore.events.job import JobSpec
from ftcore.events.node import NodeJoined, NodeLeft
from ftcore.events.operator import OperatorCommanded
from ftcore.events.worker import WorkersStarted
from ftcore.events.world import StoreOpened
from ftcore.ids import Seq, seconds
from ftcore.logs import open_log
from ftcore.ports import EventLog, NodeEnded
from ftcore.runtime.agent.link.link import make_hello
from ftcore.runtime.clock import at
from ftcore.runtime.master import deadlines as timed
from ftcore.runtime.master import sequencer
from ftcore.runtime.master import term as leads
from ftcore.runtime.master.deadlines import Deadlines
from ftcore.runtime.master.master import Master
from ftcore.runtime.master.platform_client import PlatformClient
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.master.term import Term
from ftcore.runtime.wire import frames
from ftcore.states.job import JobPhase
from ftcore.states.model import MasterState

SUBMISSION = frames.submission(JobSpec(argv=("train.py",), nodes_min=2, nodes_max=2))

NODES = ("a", "b")


def hello(node: str, life: str = "1", *, acked: int = 0) -> frames.Hello:
    return make_hello(job="job", node=node, incarnation=life, submission=SUBMISSION, again=False)(acked, None)


def joined(node: str, life: str = "1") -> Fact:
    data = NodeJoined(
        node=node, incarnation=life, slots=1, host=f"host-{node}", pid=1, address="1", version=__version__
    )
    return Fact(id=EventId(node, life, 1), data=data, at=at())


class Led:
    """A job whose nodes have joined.

    Args:
        log: its log; ``hold`` keeps appends from landing until ``go``.
        master: its master.
    """

    def __init__(self, log: EventLog, master: Master) -> None:
        self.log, self.master = log, master
        self.sessions: dict[str, Session] = {}
        self._landing = asyncio.Event()
        self._landing.set()
        self.appending = asyncio.Event()
        self.full = False
        self._append = log.append
        log.append = self._held_append  # type: ignore[method-assign]

    async def _held_append(self, *args: Any, **more: Any) -> None:
        self.appending.set()
        await self._landing.wait()
        if self.full:
            raise LogFull("no space")
        await self._append(*args, **more)

    @property
    def term(self) -> Term:
        """The work as leader."""
        assert self.master.term is not None
        return self.master.term

    def hold(self) -> None:
        """Block all appends from now on."""
        self._landing.clear()
        self.appending.clear()

    def go(self) -> None:
        """Let appends succeed again."""
        self._landing.set()

    async def until(self, kind: str) -> None:
        """Wait for an event in the log."""
        async for event in self.log.follow():
            if event.type == kind:
                return

    async def call(self, node: str) -> Session:
        """Connect an agent, which is admitted."""
        assert await self.master.greet(hello(node)) is None
        session = self.sessions[node] = Session(node, "1")
        self.master.attach(session)
        return session


@asynccontextmanager
async def led(name: str, tmp_path: Path) -> AsyncIterator[Led]:
    log = await open_log(f"memory://master-{name}", "job", create=True)
    master = Master(log, listen=f"unix:{tmp_path}/master.sock")
    running = asyncio.create_task(master.run())
    job = Led(log, master)
    await job.until("master.elected")
    for node in NODES:
        session = await job.call(node)
        master.term.take_fact(session, joined(node))
    await job.until("action.ordered")
    try:
        yield job
    finally:
        job.go()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await log.close()


def deadlines(job: Led) -> Deadlines:
    return job.term.deadlines


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def is_ended(session: Session) -> bool:
    """Whether the session's stream was ended."""
    said = [session.outgoing.get_nowait() for _ in range(session.outgoing.qsize())]
    return None in said


def test_an_agent_is_refused_once_its_loss_is_durable(tmp_path: Path) -> None:
    """While node.lost cannot be written, the lost agent keeps its stream, and its new call waits for the answer."""

    async def scenario() -> None:
        async with led("lost", tmp_path) as job:
            job.hold()
            job.term.liveness.lose("b", "1", "no frame for 2 s")
            await job.appending.wait()
            assert not is_ended(job.sessions["b"])
            call = asyncio.create_task(job.master.greet(hello("b", acked=1)))
            other = asyncio.create_task(job.master.greet(hello("c")))
            assert await job.master.greet(hello("a", acked=1)) is None
            assert await other is None
            assert not call.done()
            job.go()
            answer = await call
            assert isinstance(answer, frames.JoinRefused)
            assert answer.rejoin
            assert is_ended(job.sessions["b"])
            assert "node.lost" in [event.type async for event in job.log.read()]

    run(scenario())


def test_the_predecessors_facts_are_appended_once(tmp_path: Path) -> None:
    """During an outage of the log a restarted agent sends these facts again, before its own first one."""

    async def scenario() -> None:
        async with led("inherited", tmp_path) as job:
            job.hold()
            job.term.liveness.lose("b", "1", "its agent ended")
            await job.appending.wait()
            inherited = Fact(id=EventId("a", "1", 2), data=NodeLeft(node="a", incarnation="1", reason="left"), at=at())
            for _ in range(2):
                session = Session("a", "2")
                job.master.attach(session)
                for fact in (inherited, joined("a", "2")):
                    job.term.take_fact(session, fact)
            job.go()
            await job.term.record(OperatorCommanded(command="stop", who="test"))
            told = [(event.id.incarnation, event.id.n) async for event in job.log.read() if event.id.source == "a"]
            assert [fact for fact in told if fact[1]] == [("1", 1), ("1", 2), ("2", 1)]

    run(scenario())


def test_a_loss_reported_twice_is_appended_once(tmp_path: Path) -> None:
    """During an outage of the log, lease and platform may both report the end of one incarnation."""

    async def scenario() -> None:
        async with led("twice", tmp_path) as job:
            job.hold()
            job.term.liveness.lose("a", "1", "no frame for 2 s")
            await job.appending.wait()
            platform = PlatformClient("test:", "job", job.term.record, lambda: job.master.state)
            for _ in range(2):
                platform._handle(NodeEnded(node="b", reason="its pod has ended", pid=1))
                job.term.liveness.lose("b", "1", "no frame for 2 s")
            job.go()
            await job.term.record(OperatorCommanded(command="stop", who="test"))
            lost = [event.data.node async for event in job.log.read() if event.type == "node.lost"]
            assert lost == ["a", "b"]

    run(scenario())


def test_a_delayed_refusal_depends_on_durable_facts(tmp_path: Path) -> None:
    """A master that loses the leadership before the loss is durable refuses no agent."""

    async def scenario() -> None:
        async with led("deposed", tmp_path) as job:
            job.hold()
            job.term.liveness.lose("b", "1", "no frame for 2 s")
            await job.appending.wait()
            call = asyncio.create_task(job.master.greet(hello("b", acked=1)))
            await asyncio.sleep(0)
            await job.log.close()  # the leadership with it
            assert isinstance(await call, frames.NotMaster)
            assert "node.lost" not in [event.type async for event in job.log.read()]

    run(scenario())


def test_awaited_nodes_are_excused_while_the_store_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is queried as the nodes do; once it answers, leases are no longer extended."""
    monkeypatch.setattr(leads, "DISCOVERY_S", 0.01)
    excused, asked, answers = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def leader() -> None:
        asked.set()
        if not answers.is_set():
            raise LogUnavailable("away")

    async def scenario() -> None:
        async with led("found", tmp_path) as job:
            monkeypatch.setattr(Leases, "excuse", lambda *_: excused.set())
            monkeypatch.setattr(job.log, "leader", leader)
            job.term.liveness.leases = Leases(seconds(60), seconds(0.1))
            await excused.wait()
            answers.set()
            excused.clear()
            for _ in range(2):
                asked.clear()
                await asked.wait()
            assert not excused.is_set()

    run(scenario())


def test_a_node_whose_stream_ended_is_excused_while_the_store_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has connected to this master before, but cannot look it up now."""
    monkeypatch.setattr(leads, "DISCOVERY_S", 0.01)
    excused: asyncio.Queue[list[tuple[str, str]]] = asyncio.Queue()

    async def leader() -> None:
        raise LogUnavailable("away")

    async def scenario() -> None:
        async with led("cut-off", tmp_path) as job:
            monkeypatch.setattr(job.log, "leader", leader)
            monkeypatch.setattr(Leases, "excuse", lambda _, now, nodes=(): excused.put_nowait(list(nodes)))
            assert not job.term.liveness.awaits_streams
            job.term.agents.detach(job.sessions["a"])
            assert await excused.get() == [("a", "1")]

    run(scenario())


def test_an_elected_candidate_names_no_predecessor(tmp_path: Path) -> None:
    """A standby names the leader; after its own election it does not redirect agents to the failed one."""

    async def scenario() -> None:
        log = await open_log("memory://master-hint", "job", create=True)
        master = Master(log, listen=f"unix:{tmp_path}/master.sock")
        master.state.master = MasterState(host="h", pid=1, address="before:1", version=__version__)
        assert await master.greet(hello("a")) == frames.NotMaster("before:1")
        master._step("lease.won")
        assert await master.greet(hello("a")) == frames.NotMaster("")
        await log.close()

    run(scenario())


def asks(command: str, node: str = "") -> frames.Command:
    return frames.Command(job="job", command=command, who="me", why="", exit_code=5, node=node)


def test_an_operator_is_refused_only_for_durable_reasons(tmp_path: Path) -> None:
    """While node.lost cannot be written, a request to drain that node waits; then it is refused."""

    async def scenario() -> None:
        async with led("refused", tmp_path) as job:
            job.hold()
            job.term.liveness.lose("b", "1", "no frame for 2 s")
            await job.appending.wait()
            call = asyncio.create_task(job.master.command(asks("drain", "b")))
            await asyncio.sleep(0)
            assert not call.done()
            job.go()
            reply = await call
            assert (reply.accepted, reply.seq) == (True, 0)
            assert "it is lost" in reply.message
            assert "node.lost" in [event.type async for event in job.log.read()]

    run(scenario())


def test_an_operator_is_not_refused_by_a_deposed_master(tmp_path: Path) -> None:
    """A master that loses the leadership before that refuses no operator either."""

    async def scenario() -> None:
        async with led("refused-deposed", tmp_path) as job:
            job.hold()
            job.term.liveness.lose("b", "1", "no frame for 2 s")
            await job.appending.wait()
            call = asyncio.create_task(job.master.command(asks("drain", "b")))
            await asyncio.sleep(0)
            await job.log.close()  # the leadership with it
            assert "does not lead" in (await call).message

    run(scenario())


def test_the_outcome_of_a_command_depends_on_the_log(tmp_path: Path) -> None:
    """A resume that is queued but not in the log does not change the answer to a pause."""

    async def scenario() -> None:
        async with led("wish", tmp_path) as job:
            job.hold()
            pausing = asyncio.create_task(job.master.command(asks("pause")))
            await job.appending.wait()
            resuming = asyncio.create_task(job.master.command(asks("resume")))
            await asyncio.sleep(0)
            job.go()
            assert (await pausing).outcome == "held"
            assert (await resuming).outcome == "let go"

    run(scenario())


def test_a_reconnecting_agent_gets_its_orders_without_a_commit(tmp_path: Path) -> None:
    """Orders are sent without waiting for the next commit if the queue has only duplicates."""

    async def scenario() -> None:
        async with led("repeated", tmp_path) as job:
            asked = next(iter(job.master.state.orders.open.values())).waiting
            (node,) = list(asked)[:1]
            other = next(name for name in NODES if name != node)
            job.term.take_fact(job.sessions[other], joined(other))
            again = await job.call(node)
            frame = frames.decode_from_master(await again.outgoing.get() or b"")
            assert isinstance(frame, frames.Welcome)
            frame = frames.decode_from_master(await again.outgoing.get() or b"")
            while isinstance(frame, frames.Ack):
                frame = frames.decode_from_master(await again.outgoing.get() or b"")
            assert isinstance(frame, frames.Orders)

    run(scenario())


def test_acknowledgements_travel_with_orders_or_keepalives(tmp_path: Path) -> None:
    """A fact is acknowledged with the next order, or with the keep-alive of an idle agent."""

    async def scenario() -> None:
        async with led("signs", tmp_path) as job:
            session, now = job.sessions["b"], job.term.clock.mono()
            while not session.outgoing.empty():
                session.outgoing.get_nowait()
            session.sent = True
            sign = seconds(job.master.state.spec.timing.sign_s)  # type: ignore[union-attr]
            for moment in (now, now + sign - 1):
                job.term.agents.send_keepalives(moment, sign / 1e9)
                assert session.outgoing.empty()
            job.term.agents.send_keepalives(now + sign, sign / 1e9)
            assert frames.decode_from_master(session.outgoing.get_nowait() or b"") == frames.Ack(1, session.mark())

    run(scenario())


def test_a_master_ends_with_the_last_group_and_not_before(tmp_path: Path) -> None:
    """An agent that connects to a run whose end is not durable does not end the master."""

    async def scenario() -> None:
        async with led("over", tmp_path) as job:
            job.hold()
            for node in NODES:
                left = NodeLeft(node=node, incarnation="1", reason="stopped")
                job.term.take_fact(job.sessions[node], Fact(id=EventId(node, "1", 2), data=left, at=at()))
            await job.appending.wait()
            job.term._check_ended()
            assert not job.term.ended.is_set()

    run(scenario())


def test_deadlines_are_extended_after_an_outage_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that expires during an outage is not missed; a loss is recorded once."""
    monkeypatch.setattr(sequencer, "RETRY_S", (0.001, 0.001))

    async def scenario() -> None:
        async with led("stalled", tmp_path) as job:
            clock = job.term.clock
            now, passed = clock.now, [0]
            monkeypatch.setattr(clock, "now", lambda: now() + passed[0])

            job.full = True
            job.appending.clear()
            for _ in range(3):
                job.term.liveness.lose("b", "1", "no frame for 2 s")
            await job.appending.wait()
            passed[0] = seconds(3600)
            deadlines(job)._changed.set()
            job.full = False
            await job.until("node.lost")
            asked = job.term.record(OperatorCommanded(command="note", who="me", why="behind it"))
            await asked
            types = [event.type async for event in job.log.read()]
            assert types.count("node.lost") == 1
            assert "deadline.expired" not in types
            assert job.master.state.deadlines, "nothing could have passed"

            passed[0] += seconds(3600)
            deadlines(job)._changed.set()
            await job.until("deadline.expired")

    run(scenario())


def test_facts_queued_during_a_stall_are_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline queued before a stall is extended; a node that is heard meanwhile is not lost."""
    monkeypatch.setattr(sequencer, "RETRY_S", (0.001, 0.001))

    async def scenario() -> None:
        async with led("queued", tmp_path) as job:
            short = lambda deadline, since, _: due(deadline, since, 0.1)  # noqa: E731
            monkeypatch.setattr(timed, "due", short)
            clock = job.term.clock
            now, passed = clock.now, [0]
            monkeypatch.setattr(clock, "now", lambda: now() + passed[0])
            job.full = True
            job.appending.clear()
            job.term.record(OperatorCommanded(command="note", who="me", why="what cannot be appended"))
            await job.appending.wait()
            job.term.liveness.lose("b", "1", "no frame for 2 s")
            monkeypatch.setattr(Sequencer, "ahead", False)  # as between two batches
            passed[0] = seconds(3600)
            assert deadlines(job).expire() is None
            monkeypatch.undo()
            monkeypatch.setattr(timed, "due", short)
            monkeypatch.setattr(clock, "now", lambda: now() + passed[0])

            job.term.heard(job.sessions["b"])
            job.full = False
            expired = job.log.follow()
            async for event in expired:
                if event.type == "operator.commanded":
                    break
            resumed = job.term.sequencer.resumed
            async for event in expired:  # nothing else need come for it to be looked at once more
                assert event.type != "node.lost"
                if event.type == "deadline.expired":
                    assert event.time >= resumed + seconds(0.2)
                    break

    run(scenario())


def test_deadlines_are_extended_after_a_slow_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging store reports no error; its orders were sent only after the append."""

    async def scenario() -> None:
        async with led("slow", tmp_path) as job:
            clock = job.term.clock
            now, mono, passed = clock.now, clock.mono, [0]
            monkeypatch.setattr(clock, "now", lambda: now() + passed[0])
            monkeypatch.setattr(clock, "mono", lambda: mono() + passed[0])
            job.hold()
            noted = job.term.record(OperatorCommanded(command="note", who="me", why="held up"))
            await job.appending.wait()
            passed[0] = seconds(3600)
            job.go()
            await noted
            await job.term.record(OperatorCommanded(command="note", who="me", why="behind it"))
            assert "deadline.expired" not in [event.type async for event in job.log.read()]

    run(scenario())


def test_deadlines_are_extended_after_a_freeze_of_the_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that arrived during the freeze are still unread."""

    async def scenario() -> None:
        async with led("frozen", tmp_path) as job:
            clock = job.term.clock
            now, mono, passed = clock.now, clock.mono, [0]
            monkeypatch.setattr(clock, "now", lambda: now() + passed[0])
            monkeypatch.setattr(clock, "mono", lambda: mono() + passed[0])
            assert job.master.state.deadlines
            await asyncio.sleep(0)  # the deadlines are waited for
            passed[0] = seconds(3600)
            deadlines(job)._changed.set()
            since = deadlines(job)._grace_from
            while deadlines(job)._grace_from == since:
                await asyncio.sleep(0)
            assert (deadlines(job).expire() or 0) > 1

    run(scenario())


def marked(node: str, mark: DurableMark) -> frames.Hello:
    return msgspec.structs.replace(hello(node), mark=mark)


WRONG = {
    "another log": (lambda mark: attrs.evolve(mark, log_id="0" * 32), "deleted or replaced"),
    "went back": (lambda mark: attrs.evolve(mark, seq=mark.seq + 100), "older copy"),
    "written on": (lambda mark: attrs.evolve(mark, seq=1, digest="0" * 64), "written on|continued"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_agent_that_contradicts_the_log_parks_the_job(case: str, tmp_path: Path) -> None:
    """It leaves its workers running; after a resume it stops them and joins again."""
    change, said = WRONG[case]

    async def scenario() -> None:
        async with led(f"contradicted {case}", tmp_path) as job:
            mark = job.sessions["a"].mark()
            assert mark is not None and mark.log_id and mark.seq
            assert await job.master.greet(marked("a", mark)) is None
            for _ in range(2):
                answer = await job.master.greet(marked("a", change(mark)))
                assert isinstance(answer, frames.Parked) and re.search(said, answer.reason)
            assert job.master.state.phase is JobPhase.STUCK
            assert "ftctl resume" in job.master.state.reason()
            assert await job.master.greet(marked("a", mark)) is None, "who knows no more than the log takes part"
            assert [event.type async for event in job.log.read()].count("log.contradicted") == 1
            assert (await job.master.command(asks("resume"))).accepted
            answer = await job.master.greet(marked("a", change(mark)))
            assert isinstance(answer, frames.JoinRefused) and answer.rejoin and not answer.release

    run(scenario())


def test_a_mark_is_accepted_while_the_store_is_unreachable(tmp_path: Path) -> None:
    """An unreachable store does not separate an agent from the leading master."""

    async def scenario() -> None:
        async with led("believed", tmp_path) as job:
            mark = job.sessions["a"].mark()
            assert mark is not None

            async def silent(seq: Seq) -> str:
                raise LogUnavailable("no answer")

            job.log.digest_at = silent  # type: ignore[method-assign]
            job.term.contradictions._digests.clear()
            assert await job.master.greet(marked("a", attrs.evolve(mark, seq=Seq(1)))) is None

    run(scenario())


def test_the_rules_are_compiled_before_the_first_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside the loop, once all workers run."""
    compiled = queue.SimpleQueue[threading.Thread]()
    monkeypatch.setattr(leads, "table", lambda _: compiled.put(threading.current_thread()))

    async def scenario() -> None:
        async with led("prepared", tmp_path) as job:
            take = job.term.take_fact
            (ordered,) = [event.data async for event in job.log.read() if event.type == "action.ordered"]
            host = ordered.nodes[0]
            opened = StoreOpened(node=host, incarnation="1", round=1, host="127.0.0.1", port=1, effect=ordered.effect)
            take(job.sessions[host], Fact(id=EventId(host, "1", 2), data=opened, at=at()))
            await job.until("world.formed")
            assert compiled.empty()
            for node in NODES:
                started = WorkersStarted(node=node, incarnation="1", round=1, pids=(1,), how="fork")
                n = 3 if node == host else 2
                take(job.sessions[node], Fact(id=EventId(node, "1", n), data=started, at=at()))
            await job.until("round.started")
            thread = await asyncio.to_thread(compiled.get, True, 50)
            assert thread is not threading.main_thread()

    run(scenario())
