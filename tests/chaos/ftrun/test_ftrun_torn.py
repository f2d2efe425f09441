"""A checkpoint that cannot be read: a torn file of a disk that was full."""

from pathlib import Path

import pytest
from harness import ftrun

TRIES = 3
"""The round that left the torn file, and two that could not read it."""


@pytest.mark.timeout(300)
def test_a_torn_checkpoint_ends_the_job_and_is_named(tmp_path: Path) -> None:
    """Read twice in vain, then the job ends with the file's name; no node is blamed."""
    with ftrun(tmp_path) as job:
        job.drop("torn", "")
        run = job.start("--local-nodes", "1", script="torn.py")
        assert run.end() == 1
        assert f"{job.cwd}/30.ckpt cannot be read" in run.stderr()
        assert "is at fault" not in run.stderr()
        assert len(job.of("round.planned")) == TRIES
        assert not job.of("node.quarantined")


@pytest.mark.timeout(300)
def test_the_checkpoint_before_the_torn_one_is_taken(tmp_path: Path) -> None:
    """Where the script tells of its checkpoints and takes the one that it is told to."""
    with ftrun(tmp_path) as job:
        job.drop("torn", "")
        (job.cwd / "policy.yaml").write_text(
            "version: 1\njob: {abilities: [rollback]}\nchain: [process_restart, stop]\n"
        )
        run = job.start("--policy", "policy.yaml", script="torn.py")
        assert run.end() == 0
        [back] = job.of("job.rolled_back")
        assert back.data.step == 20 and "30.ckpt cannot be read" in back.data.reason
        assert "goes on after step 20" in run.stdout()
