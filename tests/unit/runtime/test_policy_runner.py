"""External policies in separate processes: any behaviour results in one fact and leaves no processes."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ftcore.commands import ADVISER
from ftcore.events.policy import ChainEntry, PolicyAnswered, PolicyFaulted
from ftcore.policies.file.config import default_chain
from ftcore.runtime.master.policy_runner import PolicyRunner
from ftcore.runtime.wire import SECRET_VARIABLES
from ftcore.testing.driver import JobDriver

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import TAKE, odd

FAULTS = {
    "raises": ('raise KeyError("no such thing")', "raised KeyError: 'no such thing' (acme_odd.py:23)"),
    "raises what cannot be shown": (
        "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()",
        "raised E (acme_odd.py:23)",
    ),
    "exits": ("sys.exit(3)", "raised SystemExit: 3"),
    "ends": ("os._exit(3)", "its process ended with exit code 3 and no answer"),
    "says why it ends": (
        "print('out of luck', flush=True); os._exit(3)",
        "exit code 3 and no answer; its last line: out of luck",
    ),
    "crashes": ("os.abort()", "its process ended with signal SIGABRT"),
    "recurses": ("return self.considers(incident, job, options)", "raised "),
    "mutates the job": ("job.history.attempts['x'] = [1]; return Pass(reason='x')", "modified its arguments"),
    "mutates the options": ("options.rest = 9.0; return Pass(reason='x')", "modified its arguments"),
    "puts itself into the job": (
        "job.history.attempts['x'] = self; return Pass(reason='x')",
        "modified its arguments",
    ),
    "answers nothing": ("return None", "invalid answer: None; expected a Take or a Pass"),
    "answers text for a time": (TAKE.replace("1.0", "'soon'"), "Expected `float`, got `str` - at `$.grace_s`"),
    "answers an object": (TAKE.replace('"odd enough"', "self"), "invalid answer: "),
    "answers a wrong plan": (TAKE.replace("PlanKind.RESTART", "'pray'"), "plan: 'pray', expected one of: restart"),
    "answers a time below 0": (TAKE.replace("1.0", "-1.0"), "grace_s: -1, expected seconds"),
    "answers no number": (TAKE.replace("1.0", "float('nan')"), "invalid answer: "),
    "answers a year": (TAKE.replace("1.0", "4e7"), "grace_s: 4e+07, expected seconds"),
    "names a stranger": (TAKE.replace("wait_s", "terms=Terms(exclude=('x',)), wait_s"), "the job has no node 'x'"),
    "wants too many": (
        TAKE.replace("wait_s", "terms=Terms(want=99), wait_s"),
        "terms.want: 99, expected 0, or 2 nodes",
    ),
    "goes back to nowhere": (TAKE.replace("wait_s", "terms=Terms(rollback_to=7), wait_s"), "no checkpoint of step 7"),
    "orders nothing": (TAKE.replace("RESTART", "IN_PLACE"), "terms.command: None, expected one of"),
    "tells nothing": (TAKE.replace("RESTART", "TELL"), "terms.alert: expected a message"),
    "ends with 0": (TAKE.replace("RESTART", "END").replace("wait_s", "outcome='failed', wait_s"), "exit_code: 0"),
    "rambles": ("return Pass(reason='x' * (50 << 20))", "reason: expected one printable line"),
    "answers in lines": ("return Pass(reason='x\\ny')", "reason: expected one printable line"),
    "writes over the answer": (
        "[os.write(fd, b'{' * (1 << 20)) for fd in range(3, 9) if os.path.exists(f'/proc/self/fd/{fd}')]",
        "",
    ),
}


def asking(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str = "acme-odd 2.1") -> JobDriver:
    """A job with a pending question to a policy, whose package is installed."""
    monkeypatch.setenv("PYTHONPATH", f"{odd(tmp_path, body)}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"))
    monkeypatch.chdir(tmp_path)
    entry = ChainEntry(policy="acme_odd", options={"rest": 2.0}, external=origin)
    default = default_chain()
    driver = JobDriver(policy=msgspec.structs.replace(default, chain=(entry, *default.chain)))
    driver.start()
    driver.fail("node1", exitcode=-9)
    assert [ADVISER in action.waiting for action in driver.state.orders.open.values()] == [True]
    return driver


def ask(driver: JobDriver, until: Callable[[list[Any]], bool] = bool, now: int | None = None) -> list[Any]:
    """The facts recorded for the questions of a job."""

    async def attend() -> list[Any]:
        told: list[Any] = []
        heard = asyncio.Event()

        def tell(data: Any) -> None:
            told.append(data)
            heard.set()

        runner = PolicyRunner(tell)
        for _ in range(3):  # a question is asked once, however often the master looks
            runner.reconcile(driver.state, driver.now if now is None else now)
        while not until(told):
            heard.clear()
            await heard.wait()
        await runner.close()
        return told

    return asyncio.run(attend())


def test_an_answer_becomes_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once, with the options of the chain; its printed output is ignored."""
    driver = asking(f"print('{{}}'); {TAKE}", tmp_path, monkeypatch)
    (answer,) = ask(driver)
    (effect,) = driver.state.orders.open
    assert answer == PolicyAnswered(
        effect=effect, policy="acme_odd", verdict="take", reason="odd enough", plan="restart", grace_s=1.0, wait_s=2.0
    )
    assert len((tmp_path / "asked").read_text().split()) == 1
    driver.own(answer)
    assert driver.state.incident is not None
    assert driver.state.incident.plan_in_force().policy == "acme_odd"


@pytest.mark.parametrize("name", FAULTS)
def test_any_failure_is_one_fact(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """policy.faulted, with one line about the error."""
    body, says = FAULTS[name]
    (answer,) = ask(asking(body, tmp_path, monkeypatch))
    assert isinstance(answer, PolicyFaulted)
    assert says in answer.error
    assert answer.error and "\n" not in answer.error and len(answer.error) < 600


def test_it_inherits_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the job's token nor etcd's password, but all other variables."""
    for name in (*SECRET_VARIABLES, "FTCORE_OTHER"):
        monkeypatch.setenv(name, "s3cret")
    (answer,) = ask(
        asking("raise KeyError([n for n, v in os.environ.items() if v == 's3cret'])", tmp_path, monkeypatch)
    )
    assert "KeyError: ['FTCORE_OTHER']" in answer.error


def test_time_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sleeping policy is killed before its order times out, with its child processes."""
    body = "child = subprocess.Popen(['sleep', '600']); Path('pid').write_text(str(child.pid)); time.sleep(600)"
    driver = asking(body, tmp_path, monkeypatch)
    (effect,) = driver.state.orders.open
    (answer,) = ask(driver, now=driver.state.deadlines[f"action/{effect}"] - 4_000_000_000)
    assert isinstance(answer, PolicyFaulted)
    assert answer.error == "did not answer in 3.0 s"
    assert not _lives(int((tmp_path / "asked").read_text()))
    assert not _lives(int((tmp_path / "pid").read_text()))


def test_without_time_it_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new master does not ask a question whose deadline is about to expire."""
    driver = asking(TAKE, tmp_path, monkeypatch)
    (effect,) = driver.state.orders.open
    assert ask(driver, until=lambda told: True, now=driver.state.deadlines[f"action/{effect}"]) == []
    assert not (tmp_path / "asked").exists()


def test_a_question_about_a_revised_incident_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is ended at once, because its answer would not count and the chain waits for it."""
    driver = asking("time.sleep(600)", tmp_path, monkeypatch)

    async def attend() -> list[Any]:
        told: list[Any] = []
        runner = PolicyRunner(told.append)
        runner.reconcile(driver.state, driver.now)
        await asyncio.sleep(0)
        assert driver.state.incident is not None
        driver.state.incident.revision += 1
        runner.reconcile(driver.state, driver.now)
        await runner.close()
        return told

    (answer,) = asyncio.run(attend())
    assert isinstance(answer, PolicyFaulted)
    assert "was revised" in answer.error


def test_another_version_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the version recorded in the log is asked."""
    (answer,) = ask(asking(TAKE, tmp_path, monkeypatch, origin="acme-odd 2.0"))
    assert isinstance(answer, PolicyFaulted)
    assert answer.error == "the job began with acme-odd 2.0; installed on the master's host: acme-odd 2.1"


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
