"""Policies of other packages in a real job: they are asked, and nothing that they do stops a recovery."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, gone, kill, wait_until

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import TAKE, install_example, odd

CHAIN = "version: 1\nchain:\n  - acme_odd: {rest: 100ms}\n  - process_restart\n  - stop\n"

IN_TURN = (
    ("raise KeyError('no such thing')", "raised KeyError: 'no such thing'"),
    ("os.abort()", "its process ended with signal SIGABRT"),
    ("job.membership.nodes.clear(); return Pass(reason='x')", "modified its arguments"),
    ("return None", "invalid answer: None; expected a Take or a Pass"),
    (TAKE.replace("wait_s", "terms=Terms(exclude=('node77',)), wait_s"), "the job has no node 'node77'"),
)
"""What the policy does, one incident after the other, and what the log says of it."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path / "job") as made:
        (made.cwd / "chain.yaml").write_text(CHAIN)
        made.env["PYTHONPATH"] = f"{tmp_path / 'site'}:{made.env.get('PYTHONPATH', '')}".rstrip(":")
        yield made


def test_a_policy_of_a_package_takes_an_incident(tmp_path: Path, job: Ftrun) -> None:
    """Its answer is a fact, its verdict an event like any other, its version stands in policy.loaded."""
    odd(tmp_path, f"print('noise'); sys.stderr.write('noise'); {TAKE}")
    run = job.start("--policy", "chain.yaml")
    job.stepped(1)
    job.do(0, "sys.exit(3)")
    job.stepped(2)
    job.finish()
    assert run.end() == 0
    (entry,) = [entry for entry in job.of("policy.loaded")[0].data.chain if entry.policy == "acme_odd"]
    assert (entry.external, entry.kinds, entry.options) == ("acme-odd 2.1", ("fault",), {"rest": 0.1})
    (answered,) = job.of("policy.answered")
    assert (answered.data.policy, answered.data.verdict, answered.data.wait_s) == ("acme_odd", "take", 0.1)
    (considered,) = job.of("policy.considered")
    assert (considered.data.policy, considered.data.reason) == ("acme_odd", "odd enough")
    assert job.of("incident.resolved")[0].data.policy == "acme_odd"
    assert job.ftctl("replay", "--verify").returncode == 0
    assert not gone(asked(job))


def test_whatever_a_policy_does_the_chain_goes_on(tmp_path: Path, job: Ftrun) -> None:
    """policy.faulted says in one line what it did, it counts as a pass, and process_restart restarts the workers."""
    turns = "".join(f"\n        if turn == {number}: {body}" for number, (body, _) in enumerate(IN_TURN, start=1))
    odd(tmp_path, f"turn = Path('asked').read_text().count('\\n'){turns}")
    run = job.start("--policy", "chain.yaml")
    for number in range(1, len(IN_TURN) + 1):
        job.stepped(number)
        job.do(0, "sys.exit(3)")
    job.stepped(len(IN_TURN) + 1)
    job.finish()
    assert run.end() == 0
    errors = [event.data.error for event in job.of("policy.faulted")]
    assert len(errors) == len(IN_TURN)
    assert all(says in error and "\n" not in error for error, (_, says) in zip(errors, IN_TURN, strict=True))
    verdicts = [(e.data.policy, e.data.verdict) for e in job.of("policy.considered")]
    assert verdicts == [("acme_odd", "pass"), ("process_restart", "take")] * len(IN_TURN)
    assert errors[0] in job.of("policy.considered")[0].data.reason
    assert job.ftctl("replay", "--verify").returncode == 0
    assert not gone(asked(job))


def test_a_policy_that_sleeps_is_ended_with_all_it_started(tmp_path: Path, job: Ftrun) -> None:
    """Time runs out, its process group is killed, and meanwhile the master did its other work."""
    odd(tmp_path, "subprocess.Popen(['sleep', '600']); time.sleep(600)")
    run = job.start("--policy", "chain.yaml", "--nproc-per-node", "2")
    job.stepped(1)
    job.do(0, "sys.exit(3)")
    job.wait("worker.failed")
    wait_until(lambda: asked(job), "the policy to be asked")
    job.do(1, "sys.exit(3)")
    second = job.wait("worker.failed", rank=1)
    faulted = job.wait("policy.faulted")
    job.stepped(2)
    job.finish()
    assert run.end() == 0
    assert "did not answer in" in faulted.data.error
    assert second.seq < faulted.seq
    assert not gone(asked(job))
    assert not job.processes("sleep 600")


def test_the_next_master_asks_again(tmp_path: Path, job: Ftrun) -> None:
    """A master that dies while a policy thinks takes it along; its order is inherited, the policy asked once more."""
    think = "subprocess.Popen(['sleep', '600']); time.sleep(600)"
    odd(tmp_path, f"if Path('asked').read_text().count('\\n') == 1: {think}\n        {TAKE}")
    run = job.start("--policy", "chain.yaml")
    job.stepped(1)
    job.do(0, "sys.exit(3)")
    ordered = job.wait("worker.failed")
    wait_until(lambda: job.processes("sleep 600"), "the policy to think")
    thinking = job.processes("sleep 600")
    kill(job.master())
    elected = job.wait("master.elected", ordered.seq)
    job.stepped(2)
    job.finish()
    assert run.end() == 0
    assert elected.term == 2
    assert len(asked(job)) == 2
    assert not gone([*asked(job), *thinking])
    (answered,) = job.of("policy.answered")
    assert answered.term == 2
    assert len([e for e in job.of("action.ordered") if type(e.data.command).__name__ == "AskPolicy"]) == 1
    assert job.ftctl("replay", "--verify").returncode == 0


def test_the_example_package_does_what_its_page_says(tmp_path: Path, job: Ftrun) -> None:
    """The rule of examples/policy reads the line, its policy waits, and the log holds both."""
    install_example(tmp_path / "site")
    (job.cwd / "chain.yaml").write_text(CHAIN.replace("acme_odd", "acme_cool_down"))
    run = job.start("--policy", "chain.yaml")
    job.stepped(1)
    job.do(0, "print('acme-bmc: inlet at 43 C', flush=True); sys.exit(3)")
    job.stepped(2)
    job.do(0, "sys.exit(3)")
    job.stepped(3)
    job.finish()
    assert run.end() == 0
    loaded = job.of("policy.loaded")[0].data
    assert [rule["name"] for rule in loaded.rules] == ["acme-bmc"]
    assert loaded.source == "chain.yaml with rules of acme-policies 1.0"
    assert [e.data.verdict for e in job.of("policy.answered")] == ["take", "pass"]
    assert job.of("incident.opened")[0].data.fault.detail == "too-hot"
    assert job.ftctl("replay", "--verify").returncode == 0


def asked(job: Ftrun) -> list[int]:
    """The processes in which the policy was asked."""
    path = job.cwd / "asked"
    return [int(line) for line in path.read_text().split()] if path.exists() else []
