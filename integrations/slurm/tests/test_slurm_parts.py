"""Batch scripts, Slurm's answers as its commands print them, and the decision about a requeue."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from ftcore_slurm import control, drains
from ftcore_slurm.adapter import parse
from ftcore_slurm.ending import JobEnding
from ftcore_slurm.environment import host_of, own
from ftcore_slurm.platform import clean_env
from ftcore_slurm.script import BatchScript

from ftcore.errors import Refused, Unreachable, UsageError


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that come before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(folder: Path, name: str, text: str, code: int = 0) -> None:
    """A program that prints a text; on standard error if it fails."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat {'>&2 ' if code else ''}<<'END'\n{text}\nEND\nexit {code}\n")
    path.chmod(0o755)


def test_a_script_asks_for_spares_as_far_as_they_are_free() -> None:
    """And for Slurm's signal before the time limit; values with spaces are quoted."""
    directives = ["--time=24:00:00", "--comment=a big job"]
    script = BatchScript(nodes=4, spares=2, lead_s=60, directives=directives, command=["train.py", "--name", "a b"])
    lines = script.text().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {"#SBATCH --nodes=4-6", "#SBATCH --signal=B:USR1@60", '#SBATCH --comment="a big job"'} <= set(lines)
    assert lines[-1].endswith("ftctl slurm run --nodes=4 --lead=60 -- train.py --name 'a b'")
    assert "#SBATCH --nodes=4" in BatchScript(nodes=4, command=["train.py"]).text().splitlines()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("59", 59), ("1:00", 60), ("2:03:04", 7384), ("3-00:00:01", 259201), ("UNLIMITED", None), ("INVALID", None)],
)
def test_the_time_that_is_left(programs: Path, text: str, seconds: float | None) -> None:
    """In the forms of ``squeue --format=%L``."""
    program(programs, "squeue", text)
    assert run(control.seconds_left("7")) == seconds


def test_states_of_nodes(programs: Path) -> None:
    """Without the signs behind them: a star if its slurmd does not answer, others about its power."""
    program(
        programs,
        "sinfo",
        "n1|allocated|none\nn2|down*|Not responding\nn3|draining|ftcore llm: lost\nn4|idle~|none\nbad",
    )
    found = run(control.views_of(["n1", "n2", "n3", "n4"]))
    assert {name: (view.state, view.reason) for name, view in found.items()} == {
        "n1": ("allocated", ""),
        "n2": ("down", "Not responding"),
        "n3": ("draining", "ftcore llm: lost"),
        "n4": ("idle", ""),
    }


def test_a_controller_that_is_away_is_no_refusal(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a missing command, nor one that does not end; what the user filters does not count."""
    program(programs, "squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1)
    with pytest.raises(Unreachable, match="Unable to contact"):
        run(control.nodes_of("7"))
    program(programs, "squeue", "slurm_load_jobs error: Invalid job id specified", 1)
    with pytest.raises(Refused, match="Invalid job id"):
        run(control.nodes_of("7"))
    with pytest.raises(Unreachable, match="no-such-program: No such file"):
        run(control.ask("no-such-program"))
    with pytest.raises(Unreachable, match=r"sleep did not answer within 0\.1 s"):
        run(control.ask("sleep", "60", timeout_s=0.1))
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    assert "SQUEUE_PARTITION" not in run(control.ask("env"))


def test_names_of_hosts_and_environments() -> None:
    """A replacement is named after its host; a step gets no variable of another one."""
    assert [host_of(name) for name in ("n7", "n7.1a2b3c4d", "n7.example.org", "n7.local")] == [
        "n7",
        "n7",
        "n7.example.org",
        "n7.local",
    ]
    env = {"SLURM_STEP_ID": "0", "SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}
    assert clean_env(env).keys() == {"SLURM_CONF", "PATH", "FTCORE_SLURM_REPLACEMENT"}
    inherited = {"SLURM_JOB_ID": "8", "FTCORE_SLURM_JOB": "7", "FTCORE_STORE": "etcd://a:1", "HOME": "/"}
    assert own(inherited) == {"SLURM_JOB_ID": "8", "HOME": "/"}
    assert own(inherited | {"SLURM_JOB_ID": "7"})["FTCORE_STORE"] == "etcd://a:1"


@pytest.mark.parametrize("url", ["slurm:", "slurm:x", "slurm:7?poll=0", "slurm:7?poll=x", "slurm:7?drain=no"])
def test_a_wrong_url_is_refused(url: str) -> None:
    """With what is expected."""
    with pytest.raises(UsageError, match="expected"):
        parse(url)
    assert parse("slurm:7_3?poll=2").job == "7_3"


EVENT = '{"type":"TYPE","data":{"command":"stop","why":"WHY"}}'


@attrs.frozen
class Ended:
    """How a job ended, and what becomes of it."""

    state: str
    step: int | None
    why: str
    events: tuple[tuple[str, str], ...] = (("job.submitted", ""),)
    record: str = ""
    is_absolute: bool = True
    lost: str = ""


@pytest.mark.parametrize(
    "case",
    [
        Ended("succeeded", 9, ""),
        Ended("failed", 9, "broken"),
        Ended("failed", None, ""),
        Ended("failed", 9, "", record='{"step":9}'),
        Ended("failed", 10, "broken", record='{"step":9}'),
        Ended("failed", 5, "broken", record='{"step":9}', is_absolute=False),
        Ended("failed", 10, "", record='{"step":9,"last_resorts":3}'),
        Ended("stopped", 9, "", events=(("job.submitted", ""), ("operator.commanded", "maintenance"))),
        Ended("failed", None, "n7 is lost", lost="n7 is lost"),
        Ended("failed", None, "", lost="n7 is lost", record='{"last_resorts":3}'),
        Ended(
            "failed", 9, "", lost="n7 is lost", events=(("job.submitted", ""), ("operator.commanded", "maintenance"))
        ),
        Ended("stopped", 9, "broken", events=(("operator.commanded", "maintenance"), ("job.submitted", ""))),
    ],
)
def test_the_last_resort(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Ended) -> None:
    """A job that ended by itself is requeued if it made progress, and not too often."""
    lines = [EVENT.replace("TYPE", kind).replace("WHY", why) for kind, why in case.events]
    program(programs, "ftctl", "\n".join(lines))
    monkeypatch.setattr(control, "beside_python", lambda name: name)
    if case.record:
        (tmp_path / "requeued.json").write_text(case.record)
    ending = JobEnding(number="7", restarts=0, requeues=3, directory=tmp_path)
    status = {"state": case.state, "step": case.step, "step_absolute": case.is_absolute, "reason": "broken"}
    assert run(ending.last_resort(status, case.lost)) == case.why


@pytest.mark.parametrize(("restarts", "asked"), [(2, True), (3, False)])
def test_an_older_incarnation_requeues_nothing(programs: Path, tmp_path: Path, restarts: int, asked: bool) -> None:
    """Its batch script may live on, on a host that Slurm calls dead."""
    script = f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\necho JobId=7 Restarts={restarts} BatchHost=n1\n'
    (programs / "scontrol").write_text(script)
    (programs / "scontrol").chmod(0o755)
    ending = JobEnding(number="7", restarts=2, requeues=3, directory=tmp_path)
    assert run(ending.requeue("broken", {"step": 5}, 1.0, last_resort=True))
    assert ("requeue 7" in (tmp_path / "asked").read_text()) is asked
    found = json.loads((tmp_path / "requeued.json").read_text()) if asked else None
    assert found == ({"step": 5, "last_resorts": 1, "why": "broken"} if asked else None)


def test_a_user_who_may_not_use_scontrol(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The output says that nothing is requeued and drained, with Slurm's reason; the job is not held up by it."""
    refusal = "slurm_update error: Access/permission denied"
    script = f'#!/bin/sh\ncase "$*" in *show*) echo JobId=7 Restarts=0;; *) echo "{refusal}" >&2; exit 1;; esac\n'
    (programs / "scontrol").write_text(script)
    (programs / "scontrol").chmod(0o755)
    ending = JobEnding(number="7", restarts=0, requeues=3, directory=tmp_path)
    assert not run(ending.requeue("broken", {}, 1.0, last_resort=True))
    assert f"Slurm does not requeue it: {refusal}" in capfd.readouterr().err

    async def one_event(*_: str) -> AsyncIterator[Any]:
        yield SimpleNamespace(type="node.quarantined", data=SimpleNamespace(node="n7", reason="evicted"))
        await asyncio.sleep(0)
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))

    monkeypatch.setattr(drains, "new_events", one_event)
    with contextlib.suppress(asyncio.CancelledError):
        run(drains.NodeDrains("memory:", "job").run())
    assert f"Slurm does not drain n7: {refusal}" in capfd.readouterr().err
