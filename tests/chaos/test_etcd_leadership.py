"""Who leads, over etcd: deposed, frozen, resigned and dead leaders, and what fences them."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from etcd_cluster import Cluster, Proxy, run
from test_etcd_log import ME, append, check, event, opened

from ftcore.errors import Fenced
from ftcore.ids import JobName, Seq, Term
from ftcore.logs.etcd import EtcdStore
from ftcore.ports import Candidate, Leadership
from ftcore.timing import DEFAULT

pytestmark = pytest.mark.etcd


def test_leader_that_cannot_renew_is_deposed_and_fenced(etcd: Cluster):
    """A leader that is cut off learns that it lost; a later term is larger, and what the old one writes is refused."""

    async def body() -> None:
        async with (
            Proxy(etcd.members[0].port) as proxy,
            opened(f"etcd://127.0.0.1:{proxy.port}/deposed", "j") as cut_off,
            opened(etcd.url("deposed"), "j") as log,
        ):
            old = await cut_off.campaign(ME)
            await append(cut_off, old.term, 1)
            waiting = asyncio.create_task(log.campaign(Candidate(host="there", pid=2, address="b:2")))
            proxy.refuse = True
            proxy.cut()
            assert (await old.lost()).startswith("not renewed for ")
            new: Leadership = await waiting
            assert new.term > old.term
            leader = await log.leader()
            assert leader is not None
            assert (leader.term, leader.candidate.host, leader.alive) == (new.term, "there", True)
            await append(log, new.term, 2)
            proxy.refuse = False
            with pytest.raises(Fenced):
                await append(cut_off, old.term, 3)
            await old.resign()
            await new.resign()
            assert await new.lost() == "resigned"
            leader = await log.leader()
            assert leader is not None and leader.term == new.term and not leader.alive
            await check(log, 2)

    run(body())


LEADER = """
import asyncio, structlog, sys
from test_etcd_log import ME, Seq, append, event, opened
from ftcore.errors import FtcoreError

async def lead(url):
    async with opened(url, "j") as log:
        leadership = await log.campaign(ME)
        await append(log, leadership.term, 1)
        print(leadership.term, flush=True)
        sys.stdin.readline()
        try:
            await append(log, leadership.term, 2)
        except FtcoreError as error:
            print(type(error).__name__, flush=True)
        print(await leadership.lost(), flush=True)

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
asyncio.run(lead(sys.argv[1]))
"""


def test_frozen_leader_is_deposed_and_fenced(etcd: Cluster):
    """A leader process that was stopped for longer than its lease is refused when it goes on, and learns why."""
    url = etcd.url("frozen")
    path = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parent.parent)))
    leader = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", LEADER, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )

    async def take_over(old: Term) -> None:
        async with opened(url, "j") as log:
            new = await log.campaign(ME)
            assert new.term > old
            # The new leader has written nothing yet: the term alone is the fence.
            leader.send_signal(signal.SIGCONT)
            said, _ = await asyncio.to_thread(leader.communicate, "go on\n", 60)
            assert said.splitlines()[0] == "Fenced" and len(said.splitlines()) == 2
            await append(log, new.term, 2, why="new")
            await check(log, 2)
            await new.resign()

    try:
        assert leader.stdout is not None
        term = Term(int(leader.stdout.readline()))
        leader.send_signal(signal.SIGSTOP)
        run(take_over(term))
    finally:
        leader.kill()
        leader.communicate()


def test_resigning_lets_the_next_candidate_win_at_once(etcd: Cluster):
    """Of several candidates one leads at a time; each term is larger than the one before."""

    async def body() -> None:
        async with opened(etcd.url("queue"), "j") as log, opened(etcd.url("queue"), "j") as other:
            assert await log.leader() is None
            campaigns = {asyncio.create_task(one.campaign(ME)) for one in (log, other, log)}
            terms: list[Term] = []
            while campaigns:
                done, campaigns = await asyncio.wait(campaigns, return_when=asyncio.FIRST_COMPLETED)
                (won,) = done
                terms.append(won.result().term)
                await won.result().resign()
            assert terms == sorted(set(terms)) and len(terms) == 3

    run(body())


def test_a_leader_whose_process_died_is_not_waited_for(etcd: Cluster):
    """Its lease would run for ten minutes more; a candidate that was in touch with it takes over, and it is fenced."""

    async def body() -> None:
        timing = msgspec.structs.replace(DEFAULT, master_lease_s=600.0, master_renew_s=200.0)
        code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
        code += "c = s.accept(); print('in touch', flush=True); c[0].recv(1)"
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as leader:
            assert leader.stdout is not None
            address = f"127.0.0.1:{leader.stdout.readline().strip()}"
            store = EtcdStore.from_url(etcd.url("dead"), timing=timing)
            try:
                log, other = [await store.open(JobName("j"), create=True) for _ in range(2)]
                first = await log.campaign(msgspec.structs.replace(ME, address=address))
                second = asyncio.create_task(other.campaign(ME))
                assert await asyncio.to_thread(leader.stdout.readline) == "in touch\n"
                assert not second.done()
                leader.kill()
                assert (await second).term > first.term
                with pytest.raises(Fenced):
                    await log.append([event(1, first.term)], term=first.term, expected_seq=Seq(0))
                await append(other, (await second).term, 1)
                await log.close()
                await other.close()
            finally:
                await store.close()

    run(body())
