"""``ftctl status --nodes``: what a node's heartbeats told, in a row and as JSON."""

import json

from ftcore.cli import ctl_nodes
from ftcore.runtime.wire.frames import SEEING, Beat, Gauge, NodeInfo, NodeSeen

ABOUT = NodeInfo(
    host="h",
    phase="running",
    devices=("H100", "H100"),
    gauges={"0": Gauge(celsius=40, sm_mhz=1950, used_mib=512), "1": Gauge(celsius=85, trouble="device 1: too hot")},
    blind=SEEING,
)


def test_gauges_of_a_node() -> None:
    """Models, the range of what the devices say, and what is wrong with one of them; the phase beside the round."""
    seen = NodeSeen(node="n", heard_s=0.2, beat=Beat(round=3, step=7, absolute=True), about=ABOUT)
    row = ctl_nodes._row(seen)
    assert row[-1] == "2 x H100; 40-85 C; 1950 MHz; 512 MiB; device 1: too hot"
    assert row[5:8] == ["running", "3", "7"]
    told = json.loads(json.dumps(ctl_nodes._json(seen)))
    assert (told["phase"], told["not_watched"]) == ("running", None)
    assert told["gauges"]["1"] == {"celsius": 85, "sm_mhz": None, "used_mib": None, "trouble": "device 1: too hot"}


def test_devices_that_cannot_be_watched() -> None:
    """Why there are no gauges is said; a node without devices and without a phase has neither."""
    blind = NodeInfo(devices=("H100",), blind="no answer for 60 s")
    assert ctl_nodes._row(NodeSeen("n", 0.2, None, blind))[-1] == "1 x H100; not watched: no answer for 60 s"
    row = ctl_nodes._row(NodeSeen("n", 0.2, None, NodeInfo()))
    assert (row[5], row[-1]) == ("-", "-")
