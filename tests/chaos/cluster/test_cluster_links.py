"""A link between two hosts is cut, while both reach everything else: the pair is named, and one of the two goes."""

from pathlib import Path

import pytest
from fleet import Fleet, fleet
from harness import Run, wait_until
from hosts import Host

from ftcore.events.envelope import Event
from ftcore.runtime.agent.telemetry import sockets

LEADER, NODES = "h6", ("h4", "h5")
"""Hosts without a member of etcd: who leads the job, and whose link is cut."""

SOON = {"hang_look_s": 2.0, "hang_idle_s": 8.0}


def cut(one: Host, other: Host) -> None:
    one.deafen(other)
    other.deafen(one)


def heal(one: Host, other: Host) -> None:
    one.undeafen(other)
    other.undeafen(one)


def begin(job: Fleet, *flags: str, leader: str = "auto", nodes: int = 3) -> dict[str, Run]:
    """Train DDP on the pair; beside it is the host that alone leads and, unless it only leads, trains as well."""
    runs = {LEADER: job.start_on(job[LEADER], "--leadership", leader, *flags, script="ddp.py")}
    job.wait("master.elected", host=LEADER)
    for name in NODES:
        runs[name] = job.start_on(job[name], "--leadership", "never", *flags, script="ddp.py")
        job.wait("node.joined", node=name)
    job.stepped(1, nodes=nodes)
    wait_until((job.cwd / "step.0").exists, "the first steps")
    return runs


def names_the_pair(job: Fleet, seq: int) -> Event:
    """The incident names the two hosts; no node is lost, no worker has failed."""
    seen = job.wait("standstill.judged", seq, verdict="hang")
    assert (seen.data.cause, seen.data.apart) == ("link-cut", ("h5", "h4"))
    opened = job.wait("incident.opened", seq)
    fault = opened.data.fault
    assert (fault.cls, fault.detail, fault.nodes) == ("nccl-remote-error", "link-cut", ("h5", "h4"))
    assert fault.summary.startswith("h4 and h5 cannot reach each other: no answer for ")
    assert not job.of("node.lost") and not job.of("worker.failed")
    return opened


def resends(one: Host, other: Host) -> bool:
    """Whether the kernel of a host sends something to another one again."""
    found = one.net.inside(sockets.connections)
    return any(connection.retries and connection.remote[0] == other.address for connection in found)


@pytest.mark.timeout(300)
def test_one_of_two_hosts_that_cannot_reach_each_other_goes(tmp_path: Path) -> None:
    """A loss that TCP gets over is no fault; a cut is, and without health checks the later host leaves at once."""
    with fleet(tmp_path, 6, timing=SOON) as job:
        runs = begin(job, "--nnodes", "2:3")
        pair = [job[name] for name in NODES]
        cut(*pair)
        wait_until(lambda: resends(*pair) or resends(*reversed(pair)), "a retransmission")
        heal(*pair)
        job.steps_on(0, 20)
        assert not job.of("incident.opened")

        seq = job.events.seen[-1].seq
        cut(*pair)
        opened = names_the_pair(job, seq)
        job.train_again(opened.seq, 2)
        assert {host.name for host in job.world()} == {"h4", "h6"}
        shown = job.ftctl("--job", "job", "explain").stdout
        assert "h4 and h5 cannot reach each other" in shown and "nccl-remote-error" in shown
        runs.pop("h5").end()
        job.end(*runs.values())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_hosts_alone_that_cannot_reach_each_other(tmp_path: Path) -> None:
    """With nobody beside them the job goes on with one, if it may."""
    with fleet(tmp_path, 6, timing=SOON) as job:
        runs = begin(job, "--nnodes", "1:2", leader="only", nodes=2)
        seq = job.events.seen[-1].seq
        cut(*(job[name] for name in NODES))
        opened = names_the_pair(job, seq)
        job.train_again(opened.seq, 1)
        assert [host.name for host in job.world()] == ["h4"]
        runs.pop("h5").end()
        job.end(*runs.values())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("deaf", "to"),
    [pytest.param(*NODES, id="to-the-later", marks=pytest.mark.long), pytest.param(*NODES[::-1], id="to-the-earlier")],
)
def test_a_link_that_is_cut_one_way(tmp_path: Path, deaf: str, to: str) -> None:
    """One host hears nothing from the other, which still hears it: the pair is found as with a whole cut."""
    with fleet(tmp_path, 6, timing=SOON) as job:
        runs = begin(job, "--nnodes", "2:3")
        seq = job.events.seen[-1].seq
        job[deaf].deafen(job[to])
        opened = names_the_pair(job, seq)
        job.train_again(opened.seq, 2)
        assert {host.name for host in job.world()} == {"h4", "h6"}
        runs.pop("h5").end()
        job.end(*runs.values())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_hosts_that_are_both_needed_start_again_until_the_link_is_back(tmp_path: Path) -> None:
    """In the new round the workers cannot even connect, which is found as well; with the link the training goes on."""
    with fleet(tmp_path, 6, timing=SOON) as job:
        runs = begin(job, "--nnodes", "2", leader="only", nodes=2)
        seq = job.events.seen[-1].seq
        cut(*(job[name] for name in NODES))
        names_the_pair(job, seq)
        again = job.wait("standstill.judged", job.wait("world.formed", seq).seq, verdict="hang", cause="link-cut")
        assert again.data.apart == ("h5", "h4")
        heal(*(job[name] for name in NODES))
        job.train_again(again.seq, 2)
        assert not job.of("node.lost") and len(job.of("incident.opened")) == 1
        job.end(*runs.values())


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_health_check_of_the_pair_decides(tmp_path: Path) -> None:
    """Each of the two exchanges data with a third host: the link is at fault, and the later host leaves."""
    with fleet(tmp_path, 6, timing=SOON) as job:
        (job.cwd / "policy.yaml").write_text("version: 1\njob: {health: suspect, check_s: 20s}\n")
        runs = begin(job, "--nnodes", "2:3", "--policy", "policy.yaml")
        seq = job.events.seen[-1].seq
        cut(*(job[name] for name in NODES))
        opened = names_the_pair(job, seq)
        judged = job.wait("health.judged", opened.seq)
        assert [set(link.nodes) for link in judged.data.links] == [set(NODES)]
        assert not judged.data.ill
        read = job.wait("incident.rediagnosed", judged.seq)
        assert read.data.fault.summary == (
            "h4 and h5 cannot reach each other: each reaches other nodes: the link is at fault; h5 is to leave"
        )
        job.train_again(read.seq, 2)
        assert {host.name for host in job.world()} == {"h4", "h6"}
        runs.pop("h5").end()
        job.end(*runs.values())
