"""The list of checkpoints, the newest one, and which ones are removed."""

import os
from pathlib import Path

import pytest
from stored_checkpoints import write_checkpoint, write_shards

from ftcore.checkpoint.directory import FoundCheckpoint, checkpoints, newest
from ftcore.checkpoint.files import directory_name
from ftcore.checkpoint.problems import ProblemKind
from ftcore.checkpoint.retention import ABANDONED_S, to_remove
from ftcore.checkpoint.storage import Storage
from ftcore.ids import JobName


@pytest.fixture(params=["{}", "memory://{}"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage on disk, and in an object store's place."""
    return Storage(request.param.format(tmp_path))


def test_checkpoints_are_listed_with_what_is_known(storage: Storage) -> None:
    """Complete ones, unfinished ones with whose they are, and nothing of other files."""
    assert checkpoints(storage) == [] and newest(storage) is None
    write_checkpoint(storage, 10, 1)
    write_shards(storage, 20, 1, count=3)
    storage.write("step-000000030-r1/notes", [b"x"])
    storage.write("notes", [b"x"])
    storage.write("step-40/x", [b"x"])
    ten, twenty, thirty = checkpoints(storage)
    assert (ten.step, ten.round, ten.job, ten.log, ten.ranks, ten.complete) == (10, 1, "demo", "5a1e", 2, True)
    assert [(each.name, each.rank, each.group) for each in ten.shards] == [
        ("shard-00000-of-00002.safetensors", 0, 0),
        ("shard-00001-of-00002.safetensors", 1, 1),
    ]
    assert ten.bytes == sum(entry.bytes for entry in storage.list(ten.directory))
    assert ten.age_s is not None and 0 <= ten.age_s < 3600
    assert (twenty.job, twenty.complete, twenty.problem) == ("demo", False, "unfinished")
    assert twenty.why == "no manifest: its save was interrupted, or goes on; it has 3 shards"
    assert (thirty.job, thirty.problem, thirty.shards) == ("", "unfinished", ())
    assert newest(storage) == ten or newest(storage).directory == ten.directory


def test_the_age_is_that_of_the_manifest(tmp_path: Path) -> None:
    """From the storage's clock to ours; a clock that is behind gives no negative age."""
    storage = Storage(str(tmp_path))
    directory = write_checkpoint(storage)
    os.utime(tmp_path / directory / "manifest.json", (1000, 1000))
    assert [each.age_s for each in checkpoints(storage, now=1060.0)] == [60.0]
    assert [each.age_s for each in checkpoints(storage, now=900.0)] == [0.0]


def test_a_directory_that_cannot_be_read_is_listed(tmp_path: Path) -> None:
    """The others are listed too."""
    storage = Storage(str(tmp_path))
    write_checkpoint(storage)
    (tmp_path / "step-000000020-r3").symlink_to("step-000000020-r3")
    [good, bad] = checkpoints(storage)
    assert good.complete
    assert (bad.step, bad.problem) == (20, "unreadable")
    assert "Too many levels of symbolic links" in bad.why


def test_the_newest_is_of_the_latest_round(storage: Storage) -> None:
    """A rollback makes later steps of earlier rounds useless; an unfinished checkpoint does not count."""
    write_checkpoint(storage, 100, 1)
    write_checkpoint(storage, 900, 1)
    write_checkpoint(storage, 500, 2)
    write_shards(storage, 600, 2)
    found = newest(storage)
    assert found is not None and (found.step, found.round) == (500, 2)


def test_the_newest_of_several_logs_and_jobs(tmp_path: Path) -> None:
    """The log whose manifest is the most recent one; or of the job that is asked for."""
    storage = Storage(str(tmp_path))
    for step, log, job, time in ((900, "old", "demo", 50), (10, "new", "demo", 90), (40, "x", "other", 99)):
        directory = write_checkpoint(storage, step, 7, log=log, job=job)
        os.utime(tmp_path / directory / "manifest.json", (time, time))
    assert newest(storage).step == 40
    assert newest(storage, JobName("demo")).step == 10
    assert newest(storage, JobName("none")) is None


def known(step: int, round_: int = 1, **fields: object) -> FoundCheckpoint:
    about = {"job": "demo", "log": "a", "modified": 1e9 + step, "age_s": 10.0}
    return FoundCheckpoint(directory=directory_name(step, round_), step=step, round=round_, **(about | fields))


def steps(removed: list[str]) -> list[int]:
    return [int(name[5:14]) for name in removed]


def test_the_newest_ones_are_kept() -> None:
    """As many as the job says, and one in any case."""
    found = [known(step) for step in (30, 10, 50, 20, 40)]
    assert steps(to_remove(found, 2, job="demo")) == [10, 20, 30]
    assert steps(to_remove(found, 0, job="demo")) == [10, 20, 30, 40]
    assert to_remove(found, 9, job="demo") == []
    assert to_remove([], 1, job="demo") == []


def test_every_so_many_steps_one_is_kept() -> None:
    """The first one of each interval, so it stays the same one while later ones come; and tagged ones."""
    found = [known(step) for step in range(30, 331, 30)]
    assert steps(to_remove(found, 1, 100, job="demo")) == [60, 90, 150, 180, 240, 270]
    assert steps(to_remove(found[:6], 1, 100, job="demo")) == [60, 90, 150]
    assert steps(to_remove(found[:6], 1, 100, {directory_name(90, 1)}, job="demo")) == [60, 150]


def test_a_rollback_makes_checkpoints_useless() -> None:
    """They are removed first, and are no milestones; tagged ones stay."""
    found = [known(100), known(200), known(300), known(400), known(250, 2), known(350, 2)]
    assert steps(to_remove(found, 3, job="demo")) == [100, 300, 400]
    assert steps(to_remove(found, 1, 100, job="demo")) == [300, 400, 250]
    assert steps(to_remove(found, 9, 0, [directory_name(400, 1)], job="demo")) == [300]


def test_unfinished_ones_are_removed_when_they_are_abandoned() -> None:
    """Older than the newest complete one, and an hour without a write."""
    old, young = {"age_s": ABANDONED_S}, {"age_s": ABANDONED_S - 1}
    unfinished = {"problem": ProblemKind.UNFINISHED}
    found = [
        known(10, **unfinished, **old),
        known(20, **unfinished, **young),
        known(30, problem=ProblemKind.NEWER, **old),
        known(40, problem=ProblemKind.MISSING, **old),
        known(50),
        known(60, **unfinished, **old),
    ]
    assert steps(to_remove(found, 1, job="demo")) == [10, 40]
    assert to_remove(found[:4], 1, job="demo") == []


def test_only_checkpoints_of_the_job_are_removed() -> None:
    """Two jobs may share a path, and a log that was started anew is the same job's."""
    found = [known(10, job="other"), known(20, job=""), known(30, log="before"), known(5, 9), known(15, 9)]
    assert steps(to_remove(found, 1, job="demo")) == [5, 15]
    found = [known(30, log="before", modified=5.0), known(5, 9), known(15, 9)]
    assert steps(to_remove(found, 1, job="demo")) == [30, 5]
