"""Nodes are checked before they train: a device that computes wrong values, a check that hangs, nodes that differ."""

import json
import sys
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, wait_until

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import install

WRONG = """
import sys
if sys.orig_argv[-2:] == ["ftcore.runtime.checks", "device"]:
    from ftcore.runtime.checks import device

    make = device.check

    def check(spec, say):
        import torch

        right = torch.Tensor.__matmul__

        def wrong(self, other):
            product = right(self, other)
            if product.is_floating_point() and product.ndim == 2:
                product[7, 11] += 1
            return product

        if spec.node == "node1":
            torch.Tensor.__matmul__ = wrong
        make(spec, say)

    device.check = check
"""
"""Put into every process by its path: on one node, one entry of every product is off by one."""

PROBE = """
import os, time

def probe(context):
    if context.node == "node2":
        time.sleep(3600)
    return {"verdict": "passed", "facts": {"firmware": "1.2" if context.node == "node3" else "1.1"}}

probe.budget_s = 2.0
"""


@pytest.mark.timeout(300)
def test_bad_nodes_are_found_before_the_start(tmp_path: Path) -> None:
    """Who computes wrong values and whose check hangs are kept out; the others start, and what differs is told."""
    site = install(
        tmp_path / "site",
        "acme-probe",
        "1.0",
        {"sitecustomize.py": WRONG, "acme_probe.py": PROBE},
        {"ftcore.checks": {"acme": "acme_probe:probe"}},
    )
    with ftrun(tmp_path, timing={"join_window_s": 15.0}) as job:
        job.env["PYTHONPATH"] = f"{site}:{job.env.get('PYTHONPATH', '')}".rstrip(":")
        (job.cwd / "policy.yaml").write_text("version: 1\njob: {health: suspect, check_s: 120s}\n")
        run = job.start("--local-nodes", "4", "--nnodes", "2:4", "--policy", "policy.yaml", preload=False)
        judged = job.wait("health.judged")
        found = {each.node: each for each in judged.data.ill}
        assert found["node1"].verdict == found["node2"].verdict == "faulty"
        assert found["node1"].reason == "device 0: a product in float32 contains wrong values"
        assert found["node2"].reason == "acme: did not end in time"
        assert set(found) == {"node1", "node2"} and not judged.data.links
        assert [text for text in judged.data.differing if text.startswith("firmware: 1.2 on node3")]
        formed = job.wait("world.formed")
        assert {"node0", "node3"} <= set(formed.data.joined), "with or without those that came in place of the bad ones"
        assert not {"node1", "node2"} & set(formed.data.joined)
        wait_until(lambda: phases(job) >= {("node0", "running"), ("node3", "running")}, "the phase of both nodes")
        job.finish()
        assert run.end() == 0
        checked = [event.data for event in job.of("health.checked") if event.seq < judged.seq]
        assert {one.node for one in checked} == {"node0", "node1", "node2", "node3"}
        assert {one.exchange for one in checked} == {"passed"}
        # Its second stage, where its partner of the first was ill, is the exchange alone.
        results = {result.name: result for one in reversed(checked) if one.node == "node0" for result in one.results}
        assert {"matmul", "exchange", "disk", "shared-memory", "nic", "configuration"} <= set(results)
        assert results["nic-to-nic"].verdict == "passed" and results["nic-to-nic"].values["GBps"] > 0
        for name in ("all-to-all", "device-bandwidth"):
            assert results[name].verdict == "unavailable" and results[name].detail
        assert results["nvml"].verdict == "unavailable" and results["nvml"].detail
        assert {event.data.node for event in job.of("node.quarantined")} == {"node1", "node2"}
        shown = job.ftctl("--job", "job", "status")
        assert "node1" in shown.stdout and "wrong values" in shown.stdout
        assert "firmware" in run.stderr() and "wrong values" in run.stderr()


def phases(job: Ftrun) -> set[tuple[str, str]]:
    """What the nodes' heartbeats say that they do."""
    told = json.loads(job.ftctl("--job", "job", "status", "--nodes", "--format", "json").stdout or "[]")
    return {(node["node"], node["phase"]) for node in told}
