"""Sections of a script, as it marks them and as hooks recognise them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ftcore.worker
from ftcore.runtime.agent.telemetry import samples
from ftcore.runtime.agent.workers import callfile
from ftcore.shm import page
from ftcore.shm.sections import SectionState
from ftcore.worker import _progress, _sections

SCRIPT = """
import os, sys, time
from ftcore.worker import _hooks
_hooks.install()
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
import ftcore.worker
os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT='0')
store = dist.TCPStore('127.0.0.1', 0, is_master=True)
dist.init_process_group('gloo', store=store, rank=0, world_size=1)
dist.all_reduce(torch.ones(2))
dist.barrier()
model = torch.nn.Linear(2, 1)
model.eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
step()
model.eval()
with torch.no_grad(): model(torch.ones(1, 2))
model.train()
step()
torch.save(model.state_dict(), sys.argv[1])
for _ in DataLoader([torch.ones(1)] * 2, num_workers=1): pass
print('ready', flush=True)
sys.stdin.read(1)
"""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[page.PageReader]:
    """The agent's side of this process's page."""
    fd = page.create()
    monkeypatch.setattr(_progress, "_opened", _progress.ProgressCounter(page.PageWriter(fd)))
    monkeypatch.setattr(_sections, "_of_process", None)
    made = page.PageReader(fd)
    yield made
    made.close()
    os.close(fd)


def names(reader: page.PageReader) -> dict[str, int]:
    return {each.name: each.count for each in reader.sections().past}


def test_sections_may_be_nested_and_the_earliest_limit_holds(reader: page.PageReader) -> None:
    """The inner one is shown; the time of the outer one covers both."""
    with ftcore.worker.section("tokenize", 50.0):
        outer = reader.sections()
        with ftcore.worker.section("upload", 1000.0):
            inner = reader.sections()
        assert reader.sections().name == "tokenize" and reader.sections().began == outer.began
    after = reader.sections()
    assert (outer.name, inner.name, after.name) == ("tokenize", "upload", "")
    assert outer.deadline == inner.deadline == outer.began + 50 * 10**9 and after.deadline == 0
    longest = {each.name: each.longest for each in after.past}
    assert after.covered == longest["tokenize"] >= longest["upload"]


def test_a_function_may_be_a_section(reader: page.PageReader) -> None:
    """As a decorator, also if it raises."""

    @ftcore.worker.section("validate")
    def validate() -> None:
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            validate()
    assert names(reader) == {"validate": 2} and reader.sections().name == ""


def test_another_thread_and_a_forked_child_have_no_sections(reader: page.PageReader) -> None:
    """A save in the background is none, nor is what a worker of a data loader does."""

    def inside() -> None:
        with ftcore.worker.section("background"):
            pass

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    _sections.sections()
    child = os.fork()
    if child == 0:
        inside()
        os._exit(0)
    os.waitpid(child, 0)
    assert reader.sections() == SectionState()


def test_an_evaluation_ends_with_the_next_sign_of_training(reader: page.PageReader) -> None:
    """It begins after the first step, outside of the script's own sections."""
    sections = _sections.sections()
    sections.evaluates()
    assert reader.sections().name == ""
    for sign in (
        lambda: ftcore.worker.report(2),
        lambda: _progress.progress().active(time.monotonic_ns()),
        lambda: _progress.progress().stepped(),
    ):
        ftcore.worker.report(1)
        sections.evaluates()
        sections.evaluates()
        assert reader.sections().name == "evaluation"
        sign()
        assert reader.sections().name == ""
    with ftcore.worker.section("mine"):
        sections.evaluates()
        assert reader.sections().name == "mine"
    assert names(reader) == {"evaluation": 3, "mine": 1}


@pytest.mark.parametrize(("name", "limit_s"), [("", None), ("x" * 33, None), ("a", 0.0), ("a", float("inf"))])
def test_wrong_arguments_are_refused(name: str, limit_s: float | None) -> None:
    """At the call, outside of ``ftrun`` as well."""
    with pytest.raises(ValueError, match="expected"):
        ftcore.worker.section(name, limit_s)


def test_outside_ftrun_a_section_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs anywhere."""
    monkeypatch.setattr(_progress, "_opened", _progress.ProgressCounter(None))
    monkeypatch.setattr(_sections, "_of_process", None)
    with ftcore.worker.section("anything", 1.0):
        pass
    assert _sections.sections().words is None


def test_hooks_recognise_sections_and_tell_collectives(tmp_path: Path) -> None:
    """Set-up, evaluation and checkpoint of a plain script; its newest collectives, asked while it is busy elsewhere."""
    fd = page.create()
    env = {**os.environ, page.PAGE_FD_ENV: str(fd), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", SCRIPT, str(tmp_path / "model.pt")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, env=env, pass_fds=(fd,), text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        reader = page.PageReader(fd)
        state = reader.sections()
        assert names(reader) == {"set-up": 1, "evaluation": 1, "checkpoint": 1}
        assert state.trains and state.name == ""
        assert callfile.ask(process.pid, state.calls)
        while not callfile.read(process.pid, state.calls)[0]:
            os.sched_yield()
        calls, details = callfile.read(process.pid, state.calls)
        assert (calls[0].number, calls[0].op) == (2, "barrier")
        assert [entry["profiling_name"] for entry in json.loads(details)] == ["gloo:all_reduce", "gloo:barrier"]
        os.kill(process.pid, signal.SIGSTOP)
        while samples.state(process.pid) != "T":
            os.sched_yield()
        assert callfile.ask(process.pid, state.calls)
        assert callfile.read(process.pid, state.calls) == ((), ""), "an answer to an earlier question is none"
        os.kill(process.pid, signal.SIGCONT)
        process.communicate("x")
        reader.close()
    os.close(fd)
    assert process.returncode == 0


def test_descriptors_of_another_file_are_not_used(tmp_path: Path) -> None:
    """A script may close what it does not know; then the numbers belong to other files."""
    with (tmp_path / "file").open("w+") as file:
        assert not callfile.ask(os.getpid(), (file.fileno(), file.fileno()))
        assert callfile.read(os.getpid(), (file.fileno(), file.fileno())) == ((), "")
    assert not callfile.ask(os.getpid(), (-1, -1)) and callfile.read(os.getpid(), (-1, -1)) == ((), "")
