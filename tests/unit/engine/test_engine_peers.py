"""What the survivors of a worker report: its end, not a fault of theirs."""

from ftcore.states.revisions import PEER_NOT_HANG
from ftcore.testing.driver import JobDriver

GLOO = (
    "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:5786: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs in the application."
)


def test_a_peer_that_gloo_lost_does_not_hang() -> None:
    """Gloo's advice names a hang, but the connection was closed: the survivor's report is collateral."""
    job = JobDriver(nodes=2)
    job.start()
    job.fail("node0", tail=GLOO)
    (opened,) = [event.data for event in job.events if event.type == "incident.opened"]
    assert (opened.fault.cls, opened.fault.detail) == ("collateral", "peer-gone")
    job.fail("node1", exitcode=-9)
    assert job.state.incident is not None
    fault = job.state.incident.fault
    assert (fault.cls, fault.ranks) == ("signal-preemption", (1, 0))


def test_masters_before_read_a_hang() -> None:
    """Their logs are decided again as they were decided."""
    job = JobDriver(nodes=2, decides=PEER_NOT_HANG - 1)
    job.start()
    job.fail("node0", tail=GLOO)
    (opened,) = [event.data for event in job.events if event.type == "incident.opened"]
    assert (opened.fault.cls, opened.fault.detail) == ("hang", "no-progress")
