"""The event log in etcd while its servers are killed, frozen, compacted, filled and cut off."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from etcd_cluster import Cluster, Proxy, require_etcd, run

from ftcore.errors import Conflict, Fenced, LogCorrupt, LogFull, LogUnavailable, StoreError, Truncated
from ftcore.etcd3 import Client, Config, DeleteRange, Put, Range, Txn, TxnAnswer
from ftcore.events import Event, EventId, Kind
from ftcore.events.codec import GENESIS
from ftcore.events.operator import OperatorCommanded
from ftcore.ids import JobName, Nanoseconds, Seq, Term
from ftcore.logs.archived import JoinedLog
from ftcore.logs.etcd import EtcdLog, EtcdStore
from ftcore.logs.pieces import FileArchive
from ftcore.ports import Candidate, EventLog
from ftcore.runtime.master.follower import Follower
from ftcore.states.fold import fold
from ftcore.states.model import JobState
from ftcore.states.snapshot import pack, seal
from ftcore.timing import DEFAULT, Timing

pytestmark = pytest.mark.etcd

ME = Candidate(host="here", pid=1, address="127.0.0.1:1")


def event(seq: int, term: int, why: str = "") -> Event:
    return Event(
        seq=Seq(seq),
        id=EventId("test", "1", seq),
        time=Nanoseconds(seq),
        type="operator.commanded",
        kind=Kind.FACT,
        source="test",
        term=Term(term),
        data=OperatorCommanded(command="note", who="test", why=why),
    )


@asynccontextmanager
async def opened(url: str, job: str, timing: Timing = DEFAULT) -> AsyncIterator[EtcdLog]:
    store = EtcdStore.from_url(url, timing=timing)
    try:
        yield await store.open(JobName(job), create=True)
    finally:
        await store.close()


async def append(log: EtcdLog, term: Term, first: int, count: int = 1, why: str = "") -> None:
    """Append as the master does: the same call again while the store does not answer."""
    group = [event(seq, term, why) for seq in range(first, first + count)]
    while True:
        with suppress(LogUnavailable):
            return await log.append(group, term=term, expected_seq=Seq(first - 1))


class Writer:
    """Leads, and appends events one by one; runs for a new term when its lease is lost with the server."""

    def __init__(self, log: EtcdLog) -> None:
        self._log = log
        self.acknowledged = 0
        self.terms: list[Term] = []

    async def write_to(self, last: int) -> None:
        while self.acknowledged < last:
            leadership = await self._log.campaign(ME)
            self.terms.append(leadership.term)
            end = await self._log.last_seq()
            assert end >= self.acknowledged, "an acknowledged event was lost"
            # The append in flight when the term ended may have landed; nothing else may have.
            assert end <= self.acknowledged + 1
            self.acknowledged = end
            with suppress(Fenced):
                while self.acknowledged < last:
                    await append(self._log, leadership.term, self.acknowledged + 1)
                    self.acknowledged += 1
            await leadership.resign()


class Reader:
    """Follows a log from its start and checks that it is dense."""

    def __init__(self, log: EventLog) -> None:
        self.position = 0
        self._moved = asyncio.Event()
        self._task = asyncio.create_task(self._follow(log))

    async def _follow(self, log: EventLog) -> None:
        async with aclosing(log.follow()) as events:
            async for one in events:
                assert one.seq == self.position + 1, "a gap or a repeat"
                self.position = one.seq
                self._moved.set()

    async def reached(self, seq: int) -> None:
        while self.position < seq:
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            await asyncio.wait({moved, self._task}, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
            if self._task.done():
                await self._task
                raise AssertionError("the follower ended")

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


async def check(log: EtcdLog, last: int) -> None:
    """The log holds exactly the events 1 to ``last``."""
    assert [one.seq async for one in log.read()] == list(range(1, last + 1))
    assert await log.last_seq() == last


def test_server_is_killed_while_it_is_written_and_followed(own_etcd: Cluster):
    """Two SIGKILLs of the server lose, repeat and change nothing; follower and writer go on by themselves."""

    async def body() -> None:
        async with opened(own_etcd.url(), "j") as log, opened(own_etcd.url(), "j") as other:
            writer, reader = Writer(log), Reader(other)
            writing = asyncio.create_task(writer.write_to(600))
            for point in (100, 300):
                await reader.reached(point)
                own_etcd.members[0].kill()
                await asyncio.sleep(0)
                own_etcd.members[0].start()
            await writing
            await reader.reached(600)
            await reader.stop()
            await check(log, 600)

    run(body())


def test_frozen_server_leaves_an_unknown_outcome_that_is_resolved(own_etcd: Cluster):
    """An append that hangs in a frozen server lands once, and a follower sees it once."""

    async def body() -> None:
        async with opened(own_etcd.url(), "j") as log, opened(own_etcd.url(), "j") as other:
            writer, reader = Writer(log), Reader(other)
            writing = asyncio.create_task(writer.write_to(200))
            await reader.reached(100)
            own_etcd.members[0].freeze()
            # Longer than a write's deadline: its outcome is unknown when the server goes on.
            done, _ = await asyncio.wait({writing}, timeout=6)
            assert not done
            own_etcd.members[0].thaw()
            await writing
            await reader.reached(200)
            await reader.stop()
            await check(log, 200)

    run(body())


def test_lost_answer_is_not_written_twice(etcd: Cluster):
    """When the connection is cut between request and answer, the append is acknowledged once and is there once."""

    async def body() -> None:
        async with Proxy(etcd.members[0].port) as proxy, opened(f"etcd://127.0.0.1:{proxy.port}/cut", "j") as log:
            leadership = await log.campaign(ME)
            for seq in range(1, 41):
                appending = asyncio.create_task(append(log, leadership.term, seq))
                for _ in range(seq % 7):
                    await asyncio.sleep(0)
                proxy.cut()
                await appending
            await check(log, 40)
            await leadership.resign()

    run(body())


def test_answer_lost_after_commit(etcd: Cluster, monkeypatch: pytest.MonkeyPatch):
    """A transaction that landed but whose answer was lost is found by its batch, or by its content in a later call."""

    async def body() -> None:
        async with opened(etcd.url("lost"), "j") as log:
            leadership = await log.campaign(ME)
            client = log._client
            send = client.txn

            async def lose(request, **options):
                answer = await send(request, **options)
                if any(isinstance(op, Put) for op in request.success):
                    raise LogUnavailable("the answer was lost")
                return answer

            monkeypatch.setattr(client, "txn", lose)
            await log.append([event(1, leadership.term)], term=leadership.term, expected_seq=Seq(0))

            async def lose_all(request, **options):
                await send(request, **options)
                raise LogUnavailable("all answers are lost")

            monkeypatch.setattr(client, "txn", lose_all)
            call = {"term": leadership.term, "expected_seq": Seq(1)}
            with pytest.raises(LogUnavailable):
                await log.append([event(2, leadership.term)], **call)
            monkeypatch.setattr(client, "txn", send)
            await log.append([event(2, leadership.term)], **call)
            with pytest.raises(Conflict) as caught:
                await log.append([event(2, leadership.term, "another")], **call)
            assert caught.value.last_seq == 2
            await check(log, 2)
            await leadership.resign()

    run(body())


def test_late_duplicate_does_nothing(etcd: Cluster, monkeypatch: pytest.MonkeyPatch):
    """A transaction that was held up on its way and sent again finds, when it arrives after all, the head moved."""

    async def body() -> None:
        async with opened(etcd.url("late"), "j") as log:
            leadership = await log.campaign(ME)
            client = log._client
            send = client.txn
            held: list[Txn] = []

            async def hold_up(request: Txn, **options: float) -> TxnAnswer:
                if not held and any(isinstance(op, Put) for op in request.success):
                    held.append(request)
                    raise LogUnavailable("held up")
                return await send(request, **options)

            monkeypatch.setattr(client, "txn", hold_up)
            await append(log, leadership.term, 1)
            await append(log, leadership.term, 2)
            (late,) = held
            assert not (await send(late)).succeeded
            await check(log, 2)
            await leadership.resign()

    run(body())


def test_two_writers_of_one_term_do_not_overwrite_each_other(etcd: Cluster):
    """A writer that does not know the other's append gets ``Conflict``, and the log is as the other left it."""

    async def body() -> None:
        async with opened(etcd.url("two"), "j") as log, opened(etcd.url("two"), "j") as other:
            leadership = await log.campaign(ME)
            await append(log, leadership.term, 1)
            await append(other, leadership.term, 2)
            with pytest.raises(Conflict) as caught:
                await append(log, leadership.term, 2, why="another")
            assert caught.value.last_seq == 2
            await check(log, 2)
            await leadership.resign()

    run(body())


def test_append_that_landed_before_the_term_ended_is_acknowledged(etcd: Cluster, monkeypatch: pytest.MonkeyPatch):
    """When answer and leadership are lost together, the head tells that the batch is in; the next one is refused."""

    async def body() -> None:
        async with opened(etcd.url("both"), "j") as log:
            leadership = await log.campaign(ME)
            client = log._client
            send = client.txn

            async def lose(request: Txn, **options: float) -> TxnAnswer:
                answer = await send(request, **options)
                if not any(isinstance(op, Put) for op in request.success):
                    return answer
                monkeypatch.setattr(client, "txn", send)
                await leadership.resign()
                raise LogUnavailable("the answer was lost")

            monkeypatch.setattr(client, "txn", lose)
            await log.append([event(1, leadership.term)], term=leadership.term, expected_seq=Seq(0))
            with pytest.raises(Fenced):
                await append(log, leadership.term, 2)
            await check(log, 1)

    run(body())


def test_compaction_while_a_follower_is_cut_off(own_etcd: Cluster):
    """A follower that was away while the store was compacted goes on without gap or repeat."""

    async def body() -> None:
        async with Proxy(own_etcd.members[0].port) as proxy, opened(own_etcd.url(), "j") as log:
            async with opened(f"etcd://127.0.0.1:{proxy.port}", "j") as other:
                writer, reader = Writer(log), Reader(other)
                await writer.write_to(20)
                await reader.reached(20)
                proxy.refuse = True
                proxy.cut()
                await writer.write_to(60)
                async with client_at(own_etcd) as client:
                    await client.compact((await client.range(Range(b"x"))).revision)
                proxy.refuse = False
                await reader.reached(60)
                await writer.write_to(70)
                await reader.reached(70)
                await reader.stop()
            await check(log, 70)

    run(body())


def test_what_a_follower_missed_is_archived_cut_off_and_compacted(own_etcd: Cluster, tmp_path: Path):
    """One goes on through the archive without gap or repeat, a candidate from the snapshot with the state that all the
    events make; a plain handle is told that its place is gone."""

    async def body() -> None:
        state, unhurried = JobState(), msgspec.structs.replace(DEFAULT, master_lease_s=60.0)
        async with Proxy(own_etcd.members[0].port) as proxy, opened(own_etcd.url(), "j", unhurried) as log:
            away = f"etcd://127.0.0.1:{proxy.port}"
            async with opened(away, "j") as one, opened(away, "j") as two, opened(away, "j") as three:
                term = (await log.campaign(ME)).term
                for seq in range(1, 21):
                    await append(log, term, seq)
                plain, joined, candidate = Reader(one), Reader(JoinedLog(two, None)), Follower(three, saw_run=True)
                following = asyncio.create_task(candidate.follow())
                await plain.reached(20)
                await joined.reached(20)
                await candidate.caught_up.wait()
                proxy.refuse = True
                proxy.cut()
                for seq in range(21, 61):
                    await append(log, term, seq)
                async for made in log.read():
                    fold(state, made)
                await log.save_snapshot(seal(pack(state, ())), term=term)
                archive = FileArchive(tmp_path, JobName("j"))
                archive.prepare()
                bodies = [stored async for part in log.stored(Seq(0), Seq(50)) for stored in part]
                archive.add(Seq(0), GENESIS, bodies)
                assert (await log.truncate(Seq(50), term=term, archive=archive.where)).seq == 50
                async with client_at(own_etcd) as client:
                    await client.compact((await client.range(Range(b"x"))).revision)
                proxy.refuse = False
                await joined.reached(60)
                with pytest.raises(Truncated):
                    await plain.reached(60)
                await append(log, term, 61)
                fold(state, event(61, term))
                await joined.reached(61)
                while candidate.state.seq < 61:
                    assert not following.done()
                    await asyncio.sleep(0.01)
                assert candidate.state == state
                following.cancel()
                await joined.stop()

    run(body())


@asynccontextmanager
async def client_at(cluster: Cluster) -> AsyncIterator[Client]:
    client = Client(Config.from_url(cluster.url()))
    try:
        yield client
    finally:
        await client.close()


def test_three_members_and_their_leader_is_killed(three_etcds: Cluster):
    """The loss of etcd's own leader loses nothing; clients move on to another endpoint."""

    async def body() -> None:
        async with opened(three_etcds.url(), "j") as log, opened(three_etcds.url(), "j") as other:
            writer, reader = Writer(log), Reader(other)
            writing = asyncio.create_task(writer.write_to(300))
            await reader.reached(50)
            victim = three_etcds.leader()
            victim.kill()
            await reader.reached(150)
            victim.start()
            await writing
            await reader.reached(300)
            await reader.stop()
            await check(log, 300)

    run(body())


def test_follower_of_a_frozen_member_moves_to_another(three_etcds: Cluster):
    """A follower whose member falls silent without closing the connection still gets every event."""

    async def body() -> None:
        members = three_etcds.members
        async with opened(three_etcds.url(), "j") as other:
            reader = Reader(other)
            rest = f"etcd://{members[1].endpoint},{members[2].endpoint}"
            async with opened(rest, "j") as log:
                writer = Writer(log)
                await writer.write_to(10)
                await reader.reached(10)
                members[0].freeze()
                await writer.write_to(30)
                await reader.reached(30)
            await reader.stop()

    run(body())


def test_full_store_refuses_and_takes_writes_again_when_there_is_space(tmp_path: Path):
    """At its quota etcd makes ``append`` raise ``LogFull``; nothing is written, and after clearing up it works."""
    require_etcd()
    flags = ("--unsafe-no-fsync", "--quota-backend-bytes", str(4 << 20))
    cluster = Cluster(tmp_path / "etcd", flags=flags).start()

    async def body() -> None:
        async with opened(cluster.url(), "j") as log, client_at(cluster) as client:
            leadership = await log.campaign(ME)
            await append(log, leadership.term, 1)
            with pytest.raises(LogFull):
                for _ in range(1000):  # etcd sees its size only when it commits, ten times a second
                    await client.put(Put(b"/filler", bytes(1_000_000)))
            refused = [event(2, leadership.term, "x" * 500_000)]
            with pytest.raises(LogFull):
                await log.append(refused, term=leadership.term, expected_seq=Seq(1))
            assert await client.alarms() == ("NOSPACE",)
            await check(log, 1)
            await client.delete(DeleteRange(b"/filler"))
            await client.compact((await client.range(Range(b"x"))).revision)
            await asyncio.to_thread(cluster.ctl, "defrag")
            await asyncio.to_thread(cluster.ctl, "alarm", "disarm")
            # The lease lived on: keeping it alive needs no space.
            await log.append(refused, term=leadership.term, expected_seq=Seq(1))
            await check(log, 2)
            await leadership.resign()

    try:
        run(body())
    finally:
        cluster.stop()


def test_large_batches_and_reads_from_the_middle(etcd: Cluster):
    """A batch of several segments lands whole; any part of it can be read."""

    async def body() -> None:
        unhurried = msgspec.structs.replace(DEFAULT, master_lease_s=60.0)  # a busy machine must not cost the leadership
        async with opened(etcd.url("large"), "j", unhurried) as log:
            leadership = await log.campaign(ME)
            await append(log, leadership.term, 1)
            await append(log, leadership.term, 2, 5000)
            await append(log, leadership.term, 5002, 10)
            await check(log, 5011)
            for after, until in ((0, 1), (1, 3), (1024, 1026), (1025, 1026), (4999, 5011), (5005, 9999), (5011, None)):
                expected = list(range(after + 1, min(until or 5011, 5011) + 1))
                assert [one.seq async for one in log.read(Seq(after), until and Seq(until))] == expected
            with pytest.raises(ValueError, match="at most"):
                await append(log, leadership.term, 5012, 2, "x" * (1 << 19))
            await leadership.resign()

    run(body())


def test_damage_is_noticed(etcd: Cluster):
    """A segment that was altered or deleted by hand raises ``LogCorrupt``; a head that is gone, ``StoreError``."""

    async def body() -> None:
        async with opened(etcd.url("damage"), "j") as log, client_at(etcd) as client:
            leadership = await log.campaign(ME)
            for seq in (1, 2, 3):
                await append(log, leadership.term, seq, why="good")
            key = b"/damage/ftcore/1/j/log/%016x" % 2
            kv = (await client.range(Range(key))).first
            assert kv is not None
            await client.put(Put(key, kv.value.replace(b"good", b"evil")))
            with pytest.raises(LogCorrupt, match="digest"):
                await check(log, 3)
            await client.delete(DeleteRange(key))
            with pytest.raises(LogCorrupt, match="missing"):
                await check(log, 3)
            await client.put(Put(key, kv.value))
            await check(log, 3)
            await leadership.resign()
            await client.put(Put(b"/damage/ftcore/1/j/head", b"{}"))
            with pytest.raises(StoreError, match="head"):
                await log.last_seq()
            await client.delete(DeleteRange(b"/damage/ftcore/1/j/head"))
            with pytest.raises(StoreError, match="head is missing"):
                await log.last_seq()

    run(body())


@pytest.mark.parametrize("later", [1, 5])
def test_a_follower_of_a_log_that_was_deleted_is_told(etcd: Cluster, later: int):
    """Whether the new log is shorter than what was read, or has grown beyond it: no event of it is returned."""

    async def body() -> None:
        job, prefix = f"j{later}", f"gone{later}"
        async with opened(etcd.url(prefix), job) as log, opened(etcd.url(prefix), job) as other:
            leadership = await log.campaign(ME)
            await append(log, leadership.term, 1)
            follower = Reader(other)
            await follower.reached(1)
            await append(log, leadership.term, 2, 2)
            await follower.reached(3)
            etcd.ctl("del", "--prefix", f"/{prefix}/")
            async with opened(etcd.url(prefix), job) as anew:
                successor = await anew.campaign(ME)
                with pytest.raises(StoreError, match=r"deleted or restored|previous segment"):
                    for seq in range(1, later + 1):
                        await append(anew, successor.term, seq, why="another")
                    await follower.reached(99)
                assert follower.position == 3
                await successor.resign()

    run(body())


def test_a_watch_that_loses_an_event_is_repaired(etcd: Cluster, monkeypatch: pytest.MonkeyPatch):
    """A follower whose watch leaves out an event reads it by range."""

    async def body() -> None:
        async with opened(etcd.url("lossy"), "j") as log, opened(etcd.url("lossy"), "j") as other:
            open_watch = other._client.watch
            lost = 0

            async def lossy(request):
                watch = await open_watch(request)
                read = watch.read

                async def forgetful(timeout_s):
                    nonlocal lost
                    batch = await read(timeout_s)
                    if batch is not None and batch.events and lost < 5:
                        lost += 1
                        return await read(timeout_s)
                    return batch

                monkeypatch.setattr(watch, "read", forgetful)
                return watch

            monkeypatch.setattr(other._client, "watch", lossy)
            writer, reader = Writer(log), Reader(other)
            for last in range(10, 101, 10):
                await writer.write_to(last)
                await asyncio.sleep(0)
            await reader.reached(100)
            await reader.stop()
            assert lost

    run(body())


def test_jobs_are_listed_by_their_heads(etcd: Cluster):
    """A store lists its jobs, sorted, whatever the length of their logs; other prefixes and layouts are not its."""

    async def body() -> None:
        store = EtcdStore.from_url(etcd.url("jobs"))
        assert await store.jobs() == []
        for job in ("b", "a-b", "a", "a.b"):
            await store.open(JobName(job), create=True)
        async with opened(etcd.url("jobs/more"), "hidden"), client_at(etcd) as client:
            await client.put(Put(b"/jobs/ftcore/1/stray/log/1", b""))
            assert await store.jobs() == ["a", "a-b", "a.b", "b"]
        await store.close()

    run(body())
