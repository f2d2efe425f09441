"""Standbys in etcd wait for the end of the leader and write nothing."""

import asyncio

import msgspec
import pytest
from etcd_cluster import Cluster, run

from ftcore.etcd3 import Client, Config, Lease, Range, RangeAnswer
from ftcore.logs.etcd_layout import Keys
from ftcore.logs.etcd_lead import Election
from ftcore.ports import Candidate
from ftcore.timing import DEFAULT

pytestmark = pytest.mark.etcd

ME = Candidate(host="here", pid=1, address="127.0.0.1:1")


class Counting(Client):
    """A client that counts its requests, and signals when the leader key was read a few times."""

    def __init__(self, config: Config, looks: int) -> None:
        super().__init__(config)
        self.granted, self._left, self.looked = 0, looks, asyncio.Event()

    async def range(self, request: Range, **more: float) -> RangeAnswer:
        self._left -= 1
        if self._left <= 0:
            self.looked.set()
        return await super().range(request, **more)

    async def lease_grant(self, ttl_s: int) -> Lease:
        self.granted += 1
        return await super().lease_grant(ttl_s)


def test_standbys_of_an_idle_job_write_nothing(etcd: Cluster):
    """However often they read the leader key: no revision, and no lease except the leader's."""

    async def body() -> None:
        config = Config.from_url(etcd.url())
        keys = Keys(b"/idle/")
        timing = msgspec.structs.replace(DEFAULT, master_lease_s=1.0, master_renew_s=0.3)
        clients = [Counting(config, looks=3) for _ in range(3)]
        elections = [Election(client, keys, timing) for client in clients]
        leadership = await elections[0].campaign(ME)
        revision = (await clients[0].range(Range(keys.leader))).revision
        waiting = [asyncio.create_task(election.campaign(ME)) for election in elections[1:]]
        for client in clients[1:]:
            await client.looked.wait()
        assert (await clients[0].range(Range(keys.leader))).revision == revision
        assert [client.granted for client in clients] == [1, 0, 0]
        await leadership.resign()
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await done.pop().result().resign()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for client in clients:
            await client.close()

    run(body())
