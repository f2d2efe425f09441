"""A device's check with real torch: correct and wrong calculations, and exchanges among devices."""

import asyncio
import os
from pathlib import Path

import pytest
import torch

from ftcore.commands import CheckHealth
from ftcore.engine.actions import Findings
from ftcore.ids import Round
from ftcore.runtime.agent.health import HealthCheck
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.checks import device
from ftcore.runtime.checks.protocol import Context


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.DTYPES, "cpu", ("float32", "float64", "bfloat16"))
    monkeypatch.setitem(device.SIZES, "cpu", 64)
    monkeypatch.setitem(device.REPEATS, "cpu", 2)


def test_every_type_gives_the_exact_product() -> None:
    """Integers are exact in every data type used for training, including bfloat16."""
    wrong, seconds = device.calculate(torch, "cpu", torch.device("cpu"))
    assert wrong == "" and seconds > 0


@pytest.mark.parametrize(
    ("off", "word"), [(1.0, "wrong values"), (float("nan"), "non-finite"), (float("inf"), "non-finite")]
)
def test_one_wrong_value_is_found(off: float, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single entry that is off by one or non-finite fails the device."""
    right = torch.Tensor.__matmul__

    def wrong(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        product = right(self, other)
        if product.is_floating_point() and product.ndim == 2:
            product[3, 5] += off
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    found, _ = device.calculate(torch, "cpu", torch.device("cpu"))
    assert word in found


def test_the_devices_of_a_node_exchange_data_among_themselves(tmp_path: Path) -> None:
    """Two devices, no other node: all-to-all passes; checks that cannot run are recorded with the reason."""
    context = Context(node="n", devices=0, log_dir=str(tmp_path), address="127.0.0.1")

    async def made() -> Findings:
        reaper = Reaper()
        try:
            check = HealthCheck(reaper, os.environ, context, 2)
            return await check.run(CheckHealth(round=Round(1), within_s=240.0), "check_health.1.1")
        finally:
            reaper.close()

    found = asyncio.run(made())
    results = {result.name: result for result in found.results}
    assert (found.verdict, found.exchange) == ("healthy", ""), found
    assert results["all-to-all"].verdict == "passed" and results["all-to-all"].values["bandwidth_GBps"] > 0
    assert results["device-bandwidth"].verdict == "unavailable"
    assert results["device-bandwidth"].detail == "this node trains on its CPUs"
    for name in ("exchange", "nic-to-nic"):
        assert results[name].verdict == "unavailable" and "no other node" in results[name].detail


def test_the_nodes_of_a_switch_sum_up_data(tmp_path: Path) -> None:
    """Three nodes with one label do an all-reduce; checks of a single node are not repeated."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    order = CheckHealth(
        round=Round(1),
        stage=2,
        groups=(("a", "b", "c"),),
        store=f"127.0.0.1:{store.port}",
        within_s=240.0,
        label="switch",
    )

    async def made() -> list[Findings]:
        reaper = Reaper()
        try:
            contexts = [Context(node=node, devices=0, log_dir=str(tmp_path)) for node in order.groups[0]]
            checks = [HealthCheck(reaper, os.environ, context, 1) for context in contexts]
            return await asyncio.gather(*(check.run(order, "check_health.1.2") for check in checks))
        finally:
            reaper.close()

    for found in asyncio.run(made()):
        assert (found.verdict, found.exchange) == ("healthy", "passed"), found
        assert [result.name for result in found.results] == ["matmul", "all-reduce"]
        assert found.results[1].values["bandwidth_GBps"] > 0
