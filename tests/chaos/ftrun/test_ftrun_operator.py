"""An operator's word to a running job: carried out, or passed over with the reason while the job goes on."""

import json
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, kill


def ask(job: Ftrun, *argv: str) -> tuple[int, dict]:
    done = job.ftctl(*argv, "--why", "maintenance", "--format", "json")
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def test_stop_ends_the_job_and_says_so(tmp_path: Path) -> None:
    """ftctl comes back once the job has ended; ftrun exits with 5."""
    with ftrun(tmp_path) as job:
        run = job.start()
        job.stepped(1)
        done = job.ftctl("stop", "--why", "maintenance")
        assert done.returncode == 0 and "the job has stopped" in done.stderr, done.stderr
        assert run.end() == 5
        [told] = job.of("operator.commanded")
        assert (told.data.command, told.data.why) == ("stop", "maintenance") and "@" in told.data.who
        again = job.ftctl("pause")
        assert again.returncode in (2, 3), "the master may be gone by now"


def test_a_note_to_a_running_job(tmp_path: Path) -> None:
    """The master records it; training goes on, nothing is decided, and ftrun shows it on one line."""
    with ftrun(tmp_path) as job:
        run = job.start()
        job.stepped(1)
        done = job.ftctl("note", "the fan of rack 7\nis loud", "--format", "json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        noted = job.wait("operator.noted")
        assert (noted.seq, noted.data.text) == (told["seq"], "the fan of rack 7\nis loud") and "@" in noted.data.who
        job.steps_on()
        job.finish()
        assert run.end() == 0
        assert "notes: the fan of rack 7 | is loud" in run.stderr()
        assert [event.seq for event in job.events.read() if event.cause == noted.seq] == []
        assert len(job.of("world.formed")) == 1
        again = job.ftctl("note", "the run was fine")
        assert again.returncode == 0, again.stderr
        assert [event.data.text for event in job.of("operator.noted")][-1] == "the run was fine"


@pytest.mark.parametrize("wish", ["pause", "checkpoint"])
def test_what_a_plain_script_cannot_do_is_passed_over(tmp_path: Path, wish: str) -> None:
    """The verdict says which ability is missing; training goes on as if nothing had been asked."""
    with ftrun(tmp_path) as job:
        run = job.start()
        job.stepped(1)
        code, told = ask(job, wish)
        assert (code, told["outcome"]) == (1, "dropped")
        [passed] = told["policies"]
        assert passed["verdict"] == "pass" and "needs `" in passed["reason"]
        job.steps_on()
        assert "no policy takes it; training goes on unchanged" in run.stderr()
        job.finish()
        assert run.end() == 0
        assert len(job.of("world.formed")) == 1


@pytest.mark.parametrize("wish", ["drain", pytest.param("evict", marks=pytest.mark.long)])
def test_the_job_goes_on_without_a_node(tmp_path: Path, wish: str) -> None:
    """With no machine for another, one node is released and not started anew; the other goes on alone. It trains
    again as soon as an operator admits it."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2", "--nnodes", "1:2", "--platform", "local:?capacity=0")
        job.stepped(1, nodes=2)
        code, told = ask(job, wish, "node1")
        assert (code, told["outcome"]) == (0, "done"), told
        assert told["policies"][-1]["verdict"] == "take" and "node1" in told["reason"]
        job.stepped(2)
        left = job.wait("node.left", node="node1")
        assert left.data.reason == "released"
        assert [event.data.node for event in job.of("node.quarantined")] == (["node1"] if wish == "evict" else [])
        job.steps_on()
        status = json.loads(job.ftctl("status", "--format", "json").stdout)
        assert status["world"]["node_count"] == 1
        again = job.ftctl(wish, "node1")
        assert again.returncode == 0 and "no longer takes part" in again.stderr
        code, told = ask(job, "admit", "node1")
        assert (code, told["outcome"]) == (0, "admitted")
        joined = job.wait("node.joined", told["seq"], node="node1")
        grown = job.wait("policy.considered", joined.seq, policy="grow")
        assert grown.data.verdict == "take" and "admitted again" in grown.data.reason, "no timer is waited for"
        job.stepped(3, nodes=2)
        job.finish()
        assert run.end() == 0
        assert len(job.of("node.joined", "node1")) == 2
        assert "node1 is released: " in run.stderr() and "asked for" in run.stderr()


def test_a_node_that_nobody_knows(tmp_path: Path) -> None:
    """Exit 4 with the names there are; nothing is recorded."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        job.stepped(1, nodes=2)
        done = job.ftctl("drain", "nodel")
        assert done.returncode == 4 and "no node 'nodel'; expected one of: node0, node1" in done.stderr
        done = job.ftctl("evict", "x")
        assert done.returncode == 4 and "expected one of: node0, node1" in done.stderr
        job.finish()
        assert run.end() == 0
        assert not job.of("operator.commanded")


def test_a_node_that_cannot_be_spared(tmp_path: Path) -> None:
    """With too few nodes left, and no machine for another, the wish is dropped, and both nodes go on."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2", "--platform", "local:?capacity=0")
        job.stepped(1, nodes=2)
        code, told = ask(job, "drain", "node0")
        assert (code, told["outcome"]) == (1, "dropped")
        assert any("needs at least 2" in asked["reason"] for asked in told["policies"])
        job.steps_on()
        job.finish()
        assert run.end() == 0


def test_a_hand_that_only_leaves_a_note(tmp_path: Path) -> None:
    """With --no-wait ftctl returns once it is recorded; a resume of a job that runs changes nothing."""
    with ftrun(tmp_path) as job:
        run = job.start()
        job.stepped(1)
        code, told = ask(job, "pause", "--no-wait")
        assert code == 0 and told["outcome"] is None and told["seq"]
        job.wait("incident.exhausted", told["seq"])
        code, told = ask(job, "resume")
        assert code == 0 and told["seq"] is None and "not paused, held or stuck" in told["reason"]
        job.finish()
        assert run.end() == 0


def test_a_pause_in_the_middle_of_a_recovery_holds_it(tmp_path: Path) -> None:
    """The recovery under way goes on, no other begins until somebody resumes."""
    with ftrun(tmp_path) as job:
        job.on_term(1, "pass")  # it stops when the test says so
        text = "version: 1\nchain:\n- process_restart: {grace: 10m}\n- stop: {grace: 500ms}\n"
        (job.cwd / "policy.yaml").write_text(text)
        run = job.start("--nproc-per-node", "2", "--policy", "policy.yaml")
        stubborn = job.wait("workers.started").data.pids[1]
        job.stepped(1)
        job.do(0, "sys.exit(3)")
        job.wait("incident.opened")
        code, told = ask(job, "pause")
        assert (code, told["outcome"]) == (0, "held"), told
        status = json.loads(job.ftctl("status", "--format", "json").stdout)
        assert status["held"] and status["state"] == "recovering"
        kill(stubborn)
        held = job.stepped(2)
        stubborn = job.of("workers.started")[-1].data.pids[1]
        job.do(0, "sys.exit(3)")
        opened = job.wait("incident.opened", held.seq)
        assert "no recovery begins until" in job.ftctl("status").stdout
        code, told = ask(job, "resume")
        assert (code, told["outcome"]) == (0, "let go"), told
        job.wait("policy.considered", told["seq"])
        assert not [event for event in job.of("policy.considered") if opened.seq < event.seq < told["seq"]]
        kill(stubborn)
        assert job.ftctl("stop").returncode == 0
        assert run.end() == 5


def test_a_released_machine_is_told_why_its_ftrun_ended(tmp_path: Path) -> None:
    """The ftrun of a drained node exits with 5 and says that the job goes on without it."""
    with ftrun(tmp_path) as job:
        first = job.start("--nnodes", "1:2", "--node-id", "a", "--node-rank", "0")
        second = job.start("--nnodes", "1:2", "--node-id", "b", "--node-rank", "1")
        job.stepped(1, nodes=2)
        code, told = ask(job, "drain", "b")
        assert code == 0, told
        assert second.end() == 5
        assert "this node is released, and the job goes on without it: " in second.stderr()
        assert "maintenance" in second.stderr()
        job.stepped(2)
        job.finish()
        assert first.end() == 0
