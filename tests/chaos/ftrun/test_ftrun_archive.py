"""A job whose log is cut behind it: masters die meanwhile, and the whole log can be read as before."""

import asyncio
import json
import uuid
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, kill, wait_until

from ftcore.ids import JobName
from ftcore.logs import open_store
from ftcore.ports import Floor
from ftcore.replay.overview import OverviewLabel, label_in
from ftcore.states.snapshot import overview_in

SAMPLES = {"progress_sample_s": 0.05}
SMALL = ("--snapshot-events", "10", "--keep-events", "5")


def overview(job: Ftrun) -> tuple[OverviewLabel | None, str]:
    """What the overview in the newest snapshot was made of, and the digest of the log there."""

    async def look() -> tuple[OverviewLabel | None, str]:
        store = open_store(job.store)
        try:
            log = await store.open(JobName(job.job))
            newest = await log.snapshot()
            assert newest is not None
            return label_in(overview_in(newest)), await log.digest_at(newest.seq)
        finally:
            await store.close()

    return asyncio.run(look())


def floor(job: Ftrun) -> Floor:
    """Where the live log begins now."""

    async def look() -> Floor:
        store = open_store(job.store)
        try:
            return await (await store.open(JobName(job.job))).floor()
        finally:
            await store.close()

    return asyncio.run(look())


@pytest.mark.parametrize(
    "backend", [pytest.param("sqlite", marks=pytest.mark.long), pytest.param("etcd", marks=pytest.mark.etcd)]
)
def test_a_long_log_is_archived_while_masters_die(tmp_path: Path, backend: str, request: pytest.FixtureRequest) -> None:
    """Killed masters leave no gap; every command reads archive and live log as one, or says why it cannot."""
    store = request.getfixturevalue("etcd").url(uuid.uuid4().hex) if backend == "etcd" else ""
    archive = tmp_path / "archive"
    with ftrun(tmp_path, store, SAMPLES) as job:
        run = job.start("--archive", str(archive), *SMALL, "--nproc-per-node", "2")
        job.stepped(1)
        job.do(1, "sys.exit(3)")
        last = job.wait("incident.resolved").seq
        wait_until(lambda: floor(job).seq, "a truncation")
        kill(job.master())
        last = job.wait("master.elected", last).seq
        job.wait("archive.extended", last)
        job.steps_on()
        job.finish()
        assert run.end() == 0
        assert len(job.of("world.formed")) == 2
        job.events.check()
        _read(job, archive)


def _read(job: Ftrun, archive: Path) -> None:
    events = [json.loads(line) for line in job.ftctl("events", "--format", "json").stdout.splitlines()]
    begins = floor(job)
    label, digest = overview(job)  # the second master continued that of the first: it has not read the archive
    assert label is not None and label.digest == digest
    assert len(events) > begins.seq > 9 and begins.archive == str(archive / job.job)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    explained = job.ftctl("explain", "--format", "json")
    assert explained.returncode == 0, explained.stderr
    told = json.loads(explained.stdout)
    assert told["state"] == "resolved" and told["failures"][0]["exitcode"] == 3
    early = json.loads(job.ftctl("replay", "--at", "9", "--format", "json").stdout)
    assert early["seq"] == 9
    assert json.loads(job.ftctl("replay", "--verify", "--format", "json").stdout)["verify"]["ok"]
    file = job.cwd / "x.ftlog"
    assert job.ftctl("export", "-o", str(file)).returncode == 0
    taken = job.ftctl("--store", f"file://{file}", "replay", "--at", "9", "--format", "json")
    assert json.loads(taken.stdout)["digest"] == early["digest"]
    archive.rename(job.cwd / "elsewhere")
    for command in ("explain", "export -o y.ftlog"):
        done = job.ftctl(*command.split())
        assert (done.returncode, done.stdout) == (4, ""), command
        assert f"--since {begins.seq + 1}" in done.stderr and "--archive" in done.stderr, command
        assert not (job.cwd / "y.ftlog").exists()
    assert job.ftctl("status").returncode == 0
    assert job.ftctl("replay").returncode == 0
    elsewhere = job.ftctl("--archive", str(job.cwd / "elsewhere"), "replay", "--at", "9", "--format", "json")
    assert json.loads(elsewhere.stdout)["digest"] == early["digest"]
    (job.cwd / "elsewhere").rename(archive)
