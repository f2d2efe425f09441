"""The node's description in heartbeats: only changes."""

from pathlib import Path

from ftcore.runtime.agent.telemetry.node_info import COUNTERS_S, NodeInfoWatch
from ftcore.runtime.host import SystemHost
from ftcore.runtime.wire import frames

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0
  eth0: {} 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0
  eth1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
"""

NOWHERE = SystemHost(net_dev=Path("/nowhere"), gpus=Path("/nowhere"))


def test_a_heartbeat_has_only_changes(tmp_path: Path, monkeypatch):
    """Everything at first and for a new master, then only changes; without changes the heartbeat does not grow."""
    monkeypatch.setenv("POD_NAME", "pod-7")
    net, gpu = tmp_path / "dev", tmp_path / "gpus" / "0" / "information"
    gpu.parent.mkdir(parents=True)
    net.write_text(NET_DEV.format(1000))
    gpu.write_text("Model: \t\t NVIDIA H100\nIRQ: 1\n")
    node = NodeInfoWatch("10.0.0.1", SystemHost(net_dev=net, gpus=tmp_path / "gpus"))
    first = node.changes(0.0)
    assert first is not None
    assert (first.address, first.pod, first.devices) == ("10.0.0.1", "pod-7", ("NVIDIA H100",))
    assert first.net == {"eth0": (1000, 2000, 10)}
    assert node.changes(1.0) is None
    assert node.changes(1.0 + COUNTERS_S) is None
    small = frames.encode(frames.Beat(round=1, step=7, absolute=True, loss=2.5, about=node.changes(2.0)))
    assert len(small) <= len(b'{"f":"beat","round":1,"step":7,"absolute":true,"loss":2.5}')
    net.write_text(NET_DEV.format(5000))
    node.matched("gpu-hw", 3)
    assert node.changes(3.0) == frames.NodeInfo(hits={"gpu-hw": 3})
    second = node.changes(3.0 + 2 * COUNTERS_S)
    assert second == frames.NodeInfo(net={"eth0": (5000, 2000, 10)})
    assert first.updated(second).net == {"eth0": (5000, 2000, 10)}
    assert first.updated(second).pod == "pod-7"
    node.forget()
    again = node.changes(4.0)
    assert again is not None
    assert (again.host, again.net, again.hits) == (first.host, {"eth0": (5000, 2000, 10)}, {"gpu-hw": 3})


def test_unreadable_values_are_omitted(tmp_path: Path):
    """Missing counters, missing devices and invalid data are omitted."""
    (tmp_path / "dev").write_text("a\nb\neth0: x y z\n")
    assert SystemHost(net_dev=tmp_path / "dev").interfaces() == NOWHERE.interfaces() == {}
    told = NodeInfoWatch("h", NOWHERE).changes(0.0)
    assert told is not None
    assert (told.net, told.devices) == ({}, ())


def test_phase_and_gauges_are_sent_when_they_change():
    """Phase and gauges once, then only changes; the reason for missing gauges until there are gauges."""
    node = NodeInfoWatch("h", NOWHERE)
    node.gauged({}, "no driver answers")
    first = node.changes(0.0, "standby")
    assert first is not None and (first.phase, first.blind) == ("standby", "no driver answers")
    assert node.changes(1.0, "standby") is None
    cool, hot = frames.Gauge(celsius=40), frames.Gauge(celsius=85, trouble="throttled (temperature)")
    node.gauged({"0": cool, "1": cool})
    second = node.changes(2.0, "running")
    assert second == frames.NodeInfo(phase="running", gauges={"0": cool, "1": cool}, blind=frames.SEEING)
    node.gauged({"0": cool, "1": hot})
    third = node.changes(3.0, "running")
    assert third == frames.NodeInfo(gauges={"1": hot})
    whole = first.updated(second).updated(third)
    assert (whole.phase, whole.blind, whole.gauges) == ("running", frames.SEEING, {"0": cool, "1": hot})
    node.forget()
    again = node.changes(4.0, "running")
    assert again is not None and (again.phase, again.gauges) == ("running", {"0": cool, "1": hot})
