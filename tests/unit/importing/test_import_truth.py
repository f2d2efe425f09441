"""Jobs that really ran under torchrun 2.13 with an injected fault: class, culprit, time and restarts are found.

``tests/data/import/README.md`` tells how they were made. The last test runs one anew.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from imported import DATA, imported, rank_at_root

TRUTH = {
    "exception": ("user-code", 1, 4),
    "kill": ("signal-preemption", 2, 4),
    "segv": ("user-code", 0, 5),
    "exit": ("user-code", 1, 4),
    "oom": ("oom-gpu", 2, 3),
    "hang": ("hang", 1, 4),
    "restart": ("user-code", 1, 6),
    "two": ("signal-preemption", 3, 6),
}
"""Class, rank and step of each fault; the step was not completed."""
SECOND = 10**9
HANG_WAIT_S = 15.0
"""The timeout of the process group in ``hang``: the other ranks report that much later."""


@pytest.mark.parametrize("case", TRUTH)
def test_class_culprit_time_and_step(case: str) -> None:
    """The first incident names what was injected, where and when."""
    cls, rank, step = TRUTH[case]
    result = imported(DATA / case)
    assert len(result.incidents) == 1
    incident = result.incidents[0]
    assert (incident.cls, rank_at_root(result)) == (cls, rank)
    truth = json.loads((DATA / case / "truth.json").read_text())["time"]
    late = HANG_WAIT_S if case == "hang" else 0.0
    found = result.failure
    cited = result.cited(found)
    assert cited.data.error_s is not None
    assert abs(found.time / SECOND - late - truth) <= max(1.0, cited.data.error_s) + 0.5
    assert found.data.step == step - 1


@pytest.mark.parametrize(
    ("case", "cls", "code", "at"),
    [("exception", "user-code", 1, 1795666042.3), ("kill", "signal-preemption", -9, 1795666048.9)],
)
def test_the_event_log_of_torchrun(case: str, cls: str, code: int, at: float) -> None:
    """It alone shows who failed first, with what, and when, to the second; and that the job failed."""
    result = imported(DATA / "events" / f"{case}.jsonl")
    (incident,) = result.incidents
    assert (incident.cls, rank_at_root(result), result.failure.data.exitcode) == (cls, 1, code)
    assert abs(result.failure.time / SECOND - at) <= 1.5
    assert [event.data.outcome for event in result.of("job.finished")] == ["failed"]
    assert [event.data.slots for event in result.of("node.joined")] == [3]


def test_the_event_log_of_a_restart() -> None:
    """Why an attempt ended is not in it; that another one began, is."""
    result = imported(DATA / "events" / "restart.jsonl")
    assert [event.data.round for event in result.of("round.started")] == [1, 2]
    assert [event.data.outcome for event in result.of("job.finished")] == ["succeeded"]
    assert result.of("policy.loaded")[0].data.source == "torchrun"


def test_a_restart_is_a_new_round_with_its_lost_steps() -> None:
    """torchrun started all workers again: round 2 resolves the incident, and five steps were computed twice."""
    result = imported(DATA / "restart")
    (incident,) = result.incidents
    assert (incident.resolved_by, incident.steps_lost) == ("torchrun", 5)
    assert [event.data.round for event in result.of("round.started")] == [1, 2]
    assert "no file shows how the job ended; the log ends with the last line" in result.found.collected.notes
    assert not result.of("job.finished")


def test_the_launcher_is_the_policy() -> None:
    """What torchrun did is the recorded answer of the chain; nothing else is in it."""
    result = imported(DATA / "restart")
    (loaded,) = result.of("policy.loaded")
    assert [entry.policy for entry in loaded.data.chain] == ["torchrun"]
    plans = [event.data.plan for event in result.of("policy.considered")]
    assert plans == ["restart"]
    ends = [event.data.plan for event in imported(DATA / "exit").of("policy.considered")]
    assert ends == ["end"]


def test_every_fact_has_its_source() -> None:
    """A fact of a node names the file and line that shows it, or follows from such a fact."""
    result = imported(DATA / "two")
    names = {file.name for file in result.found.collected.files}
    facts = [event for event in result.events if event.kind == "fact" and event.source not in ("master", "import")]
    assert len(facts) > 10
    for fact in facts:
        place = result.cited(fact).data.place
        assert place.rpartition(":")[0] in names or place in names, fact
    failed = next(event for event in facts if event.type == "worker.failed" and event.data.rank == 3)
    assert result.cited(failed).data.place.startswith("node-b/torchrun.log:")


def test_two_hosts_are_two_nodes() -> None:
    """The run folders of two agents are two nodes, ordered by the ranks that torchrun's summary gives them."""
    result = imported(DATA / "two")
    assert result.found.story.hosts == {"node-a": 2, "node-b": 2}
    (formed,) = result.of("world.members")
    assert [(member.node, member.base_rank) for member in formed.data.members] == [("node-a", 0), ("node-b", 2)]


def test_a_job_that_runs_now(tmp_path: Path) -> None:
    """torchrun runs with a worker that is killed; its logs, read afterwards, show rank and signal."""
    script = tmp_path / "train.py"
    shutil.copy(DATA / "train.py", script)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    launch += ["--rdzv-endpoint", "localhost:0", "--local-addr", "localhost", "--redirects", "3"]
    launch += ["--log-dir", str(tmp_path / "job" / "logs"), str(script), "kill", "1", "3"]
    (tmp_path / "job").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "PYTEST"))}
    environment = {**kept, "TRUTH": str(tmp_path / "truth.json"), "OMP_NUM_THREADS": "1", "WAIT_S": "120"}
    with (tmp_path / "job" / "torchrun.log").open("wb") as out:
        subprocess.run(launch, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=300)
    result = imported(tmp_path / "job")
    assert result.incidents[0].cls == "signal-preemption"
    assert result.failure.data.exitcode == -9
    assert rank_at_root(result) == 1
    truth = json.loads((tmp_path / "truth.json").read_text())["time"]
    assert truth - 1 <= result.failure.time / SECOND
