"""Hosts unlike this machine: addresses of IPv6 alone, several workers on each, wall clocks that are an hour off."""

import itertools
import json
from pathlib import Path

import pytest
from fleet import fleet
from hosts import clock

HOUR_S = 3600
FEW_S = 600.0
"""More than anything here lasts, and less than the clocks are off."""


@pytest.mark.timeout(300)
def test_ipv6_two_workers_on_each_and_clocks_an_hour_off(tmp_path: Path) -> None:
    """The first to lead is an hour behind, the others an hour ahead. A worker is lost, then the leader's host, then
    a worker again. Nothing expires or seems to last because of a clock, and nothing stands in the log before its time.
    """
    with fleet(tmp_path, 3, ipv6=True) as job:
        runs = {}
        for name, off in (("h1", -HOUR_S), ("h2", HOUR_S), ("h3", HOUR_S)):
            runs[name] = job.start_on(job[name], "--nnodes", "2", "--nproc-per-node", "2", env=clock(off))
            job.wait("node.joined", node=name)
        seq = job.stepped(1, nodes=2).seq
        first = job.master_host()
        assert first.name == "h1"

        job.do(3, "sys.exit(3)")
        seq = job.train_again(seq, 2).seq
        lost = runs.pop(first.name)
        first.power_off()
        seq = job.train_again(seq, 2).seq
        lost.end()
        job.do(3, "sys.exit(3)")
        job.train_again(seq, 2)
        assert job.master_host() is not first
        job.end(*runs.values())

        assert {event.data.address for event in job.of("node.joined")} == {host.address for host in job.lan.hosts}
        times = [event.time for event in job.events.read()]
        assert all(0 <= later - sooner < FEW_S * 1e9 for sooner, later in itertools.pairwise(times))
        told = json.loads(job.ftctl("incidents", "--format", "json").stdout)
        assert len(told) >= 3
        lasted = [seconds for each in told for seconds in each["phases"].values() if seconds is not None]
        assert lasted and all(0 <= seconds < FEW_S for seconds in lasted)
