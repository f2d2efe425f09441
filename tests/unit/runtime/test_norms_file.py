"""``abnormal_global_norm.json``: written from the folded state, kept over runs, never in place of a special file."""

import asyncio
import json
import os
import threading
from pathlib import Path

import msgspec
import pytest

from ftcore.errors import CheckpointError
from ftcore.events.job import JobSpec
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import default_chain
from ftcore.runtime.master.norms_file import NORMS_FILE, NormsFile, Values, update
from ftcore.testing.driver import JobDriver


def job(folder: Path) -> JobDriver:
    """A job that computes abnormal steps again."""
    chain = (default_entry("recompute_step"), *default_chain().chain)
    spec = JobSpec(argv=("train.py",), nodes_min=2, nodes_max=2, checkpoints=str(folder))
    driver = JobDriver(spec=spec, policy=msgspec.structs.replace(default_chain(), chain=chain), abilities=("retry",))
    driver.start()
    return driver


def abnormal(driver: JobDriver, step: int, norm: float, **more: float) -> None:
    """Both nodes report a step."""
    for node in ("node0", "node1"):
        driver.observe(node, "norm", values={"norm": norm, "at": step, "limit": 3.0, **more})


async def written(driver: JobDriver) -> None:
    """A new master writes what the state has."""
    file = NormsFile()
    file.committed((), driver.state)
    await file.close()


def test_the_values_before_and_after_are_written(tmp_path: Path):
    """As MindSpore writes them; another abnormal step, whose second value was usual, has one."""
    driver = job(tmp_path)
    abnormal(driver, 2, 45.7)
    driver.settle(step=False)
    abnormal(driver, 2, 45.71, again=1.0)
    driver.settle()
    abnormal(driver, 12, 7.0)
    driver.settle()
    asyncio.run(written(driver))
    assert json.loads((tmp_path / NORMS_FILE).read_text()) == {"2": [45.7, 45.71], "12": [7.0]}
    assert (driver.state.incidents, driver.state.training.tolerated) == (2, [2, 12])
    assert [path.name for path in tmp_path.iterdir()] == [NORMS_FILE]


def test_it_follows_the_log(tmp_path: Path):
    """A batch with a report has it written again; a batch without one does not."""
    driver = job(tmp_path)

    async def follow() -> None:
        file = NormsFile()
        file.committed(driver.events, driver.state)
        assert not (tmp_path / NORMS_FILE).exists()
        known = len(driver.events)
        abnormal(driver, 2, 4.0)
        file.committed(driver.events[known:], driver.state)
        await file.close()
        assert json.loads((tmp_path / NORMS_FILE).read_text()) == {"2": [4.0]}
        (tmp_path / NORMS_FILE).unlink()
        file.committed((), driver.state)
        await file.close()
        assert not (tmp_path / NORMS_FILE).exists()

    asyncio.run(follow())


def test_the_next_run_keeps_the_values(tmp_path: Path):
    """They are state that a run inherits; entries of another log stay in the file."""
    update(str(tmp_path), {"1": [3.5]})
    driver = job(tmp_path)
    abnormal(driver, 2, float("inf"))
    driver.stop()
    driver.settle()
    driver.start()
    asyncio.run(written(driver))
    assert json.loads((tmp_path / NORMS_FILE).read_text()) == {"1": [3.5], "2": [None]}


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null"), lambda path: path.mkdir()])
def test_a_special_file_is_left_alone(tmp_path: Path, make):
    """Neither read, which may never end, nor replaced."""
    make(tmp_path / NORMS_FILE)
    with pytest.raises(CheckpointError, match="is no regular file"):
        update(str(tmp_path), {"1": [3.5]})
    driver = job(tmp_path)
    abnormal(driver, 2, 4.0)
    asyncio.run(written(driver))
    assert not (tmp_path / NORMS_FILE).is_file()


def test_a_damaged_file_is_replaced(tmp_path: Path):
    """Its values are in the log."""
    (tmp_path / NORMS_FILE).write_text("{")
    update(str(tmp_path), {"1": [3.5]})
    assert json.loads((tmp_path / NORMS_FILE).read_text()) == {"1": [3.5]}


@pytest.mark.parametrize("retry_s", [0.01, 3600.0], ids=["after a time", "at the end"])
def test_a_write_that_fails_is_tried_again(tmp_path: Path, retry_s: float, monkeypatch: pytest.MonkeyPatch):
    """The storage is away for a while."""
    monkeypatch.setattr("ftcore.runtime.master.norms_file.RETRY_S", retry_s)
    folder, tried = tmp_path / "saved", threading.Event()
    folder.write_text("no directory")
    driver = job(folder)
    abnormal(driver, 2, 4.0)

    def fail(url: str, values: Values) -> None:
        tried.set()
        update(url, values)

    monkeypatch.setattr("ftcore.runtime.master.norms_file.update", fail)

    async def follow() -> None:
        file = NormsFile()
        file.committed((), driver.state)
        assert await asyncio.to_thread(tried.wait, 60)
        folder.unlink()
        if retry_s < 1:
            while not (folder / NORMS_FILE).exists():
                await asyncio.sleep(0.01)
        await file.close()

    asyncio.run(follow())
    assert json.loads((folder / NORMS_FILE).read_text()) == {"2": [4.0]}
