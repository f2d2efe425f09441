"""Slurm, Kubernetes and plain text: realistic records and lines, and what becomes of them."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from imported import DATA, imported, rank_at_root

from ftcore.cli.ftctl import main
from ftcore.importing.slurm import expand_hosts
from ftcore.importing.stamps import read_time, stamp_of
from ftcore.replay.goodput import GoodputLedger

START = datetime(2026, 11, 24, 1, 0, 0)
SACCT = """\
JobID|JobName|State|ExitCode|Start|End|NodeList|AllocTRES
4711|pretrain|NODE_FAIL|0:0|2026-11-24T01:00:00|2026-11-24T02:10:30|gpu[01-02]|billing=16,gres/gpu=4,node=2
4711|pretrain|TIMEOUT|0:0|2026-11-24T02:14:00|2026-11-24T05:00:10|gpu[02-03]|billing=16,gres/gpu=4,node=2
4711.batch|batch|CANCELLED|0:15|2026-11-24T02:14:00|2026-11-24T05:00:40|gpu02|
"""


def steps(first: int, count: int, begin_s: float, pace_s: float, *, rank: str = "0: ", loss: float = 2.5) -> str:
    """Lines of a training log, one for every ten steps."""
    lines = []
    for number in range(count):
        moment = START + timedelta(seconds=begin_s + number * pace_s)
        lines.append(f"{rank}{moment:%Y-%m-%d %H:%M:%S},123 INFO step {first + 10 * number} | loss {loss:.3f}\n")
    return "".join(lines)


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A job that lost a node, was requeued on another one, and reached its time limit."""
    lost = "2026-11-24T02:10:12"
    text = steps(10, 129, 92, 32)
    text += f"slurmstepd: error: *** JOB 4711 ON gpu01 CANCELLED AT {lost} DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n"
    text += "srun: error: Node failure on gpu02\n"
    text += steps(1000, 300, 4500, 32)
    text += "slurmstepd: error: *** JOB 4711 ON gpu02 CANCELLED AT 2026-11-24T05:00:10 DUE TO TIME LIMIT ***\n"
    (tmp_path / "slurm-4711.out").write_text(text)
    (tmp_path / "sacct.txt").write_text(SACCT)
    return tmp_path


def test_slurm_records_and_log(slurm: Path) -> None:
    """Two rows of one job are two runs on different nodes; the lost node and the time limit are the two faults."""
    result = imported(slurm)
    assert result.found.collected.source == "slurm"
    assert [(one.cls, one.job_ended) for one in result.incidents] == [
        ("node-lost", "failed"),
        ("signal-preemption", "failed"),
    ]
    assert result.incidents[0].nodes[0] == "gpu02"
    assert [event.data.job for event in result.of("job.submitted")] == ["pretrain", "pretrain"]
    assert [[member.node for member in event.data.members] for event in result.of("world.members")] == [
        ["gpu01", "gpu02"],
        ["gpu02", "gpu03"],
    ]
    assert [event.data.slots for event in result.of("node.joined")] == [2, 2, 2, 2]


def test_a_real_slurm_job() -> None:
    """Slurm 22.05 on three nodes: one was switched off, the job was requeued and appended, then its limit came."""
    result = imported(DATA / "slurm")
    assert result.found.collected.source == "slurm"
    lost, limit = result.incidents
    assert (lost.cls, lost.nodes[0], lost.steps_lost, limit.cls) == ("node-lost", "sn2", 8, "signal-preemption")
    assert [len(run.attempts) for run in result.found.story.runs] == [2]
    off = read_time("2026-11-25T22:56:01Z")
    assert off is not None and off.ns is not None
    assert 0 <= result.failure.time / 1e9 - off.ns / 1e9 <= 18.5  # SlurmdTimeout is 10 s


def test_real_records_of_sacct(tmp_path: Path) -> None:
    """Slurm 22.05 with slurmdbd: one of the two nodes was switched off; the record of another job is left out."""
    result = imported(DATA / "sacct")
    assert (result.incidents[0].cls, result.incidents[0].nodes[0]) == ("node-lost", "h4")
    assert [[member.node for member in event.data.members] for event in result.of("world.members")] == [["h2", "h4"]]
    lines = (DATA / "sacct" / "sacct.txt").read_text().splitlines(keepends=True)
    other = lines[1].replace("6|nodefail", "5|before")
    (tmp_path / "sacct.txt").write_text("".join([lines[0], *lines[1:], other]))
    assert any("only the first one, 6, was read" in note for note in imported(tmp_path).found.collected.notes)


def test_goodput_counts_repeated_steps(slurm: Path) -> None:
    """The second run began at step 1000 although step 1290 had been reached: 29 reports are computed again."""
    ledger = GoodputLedger()
    for event in imported(slurm).events:
        ledger.feed(event)
    seconds = ledger.report().seconds
    assert seconds["recompute"] == pytest.approx(29 * 32, rel=0.5)
    assert sum(seconds.values()) == pytest.approx(4 * 3600 + 10)


def test_a_log_without_times_has_no_goodput(tmp_path: Path) -> None:
    """All events of such an import are of one instant: no time has passed, and none is shared out."""
    for rank in (0, 1):
        place = tmp_path / "run" / "attempt_0" / str(rank)
        place.mkdir(parents=True)
        (place / "stdout.log").write_text("".join(f"step {step} loss {9 - step}.5\n" for step in range(6)))
        error = "Traceback (most recent call last):\n  File 't.py', line 3, in <module>\nValueError: bad batch\n"
        (place / "stderr.log").write_text(error)
    result = imported(tmp_path)
    assert result.of("job.progressed")
    ledger = GoodputLedger()
    for event in result.events:
        ledger.feed(event)
    assert sum(ledger.report().seconds.values()) == 0


def untimed(folder: Path) -> Path:
    """Two ranks whose steps have no time; rank 1 prints an exception, and the launcher's lines have times."""
    for rank in (0, 1):
        place = folder / "run" / "attempt_0" / str(rank)
        place.mkdir(parents=True)
        (place / "stdout.log").write_text("".join(f"step {step} loss {9 - step}.5\n" for step in range(6)))
    error = ("Traceback (most recent call last):", "  File 't.py', line 3, in <module>", "ValueError: bad batch")
    (place / "stderr.log").write_text("".join(f"[rank1]: {line}\n" for line in error))
    (folder / "torchrun.out").write_text(
        "W1124 01:00:00.500000 12092 torch/distributed/run.py:874] Setting OMP_NUM_THREADS\n"
        "E1124 01:02:00.500000 12092 torch/distributed/elastic/multiprocessing/api.py:1002] "
        "failed (exitcode: 1) local_rank: 1 (pid: 12100) of binary: /usr/bin/python\n"
    )
    return folder


def test_steps_without_a_time_leave_the_goodput_unknown(tmp_path: Path) -> None:
    """Time has passed, but nothing tells training from starting: no share of it is claimed to be productive."""
    result = imported(untimed(tmp_path))
    ledger = GoodputLedger()
    for event in result.events:
        ledger.feed(event)
    report = ledger.report()
    assert result.of("job.progressed") and report.wall_s > 60
    assert (report.goodput, report.mtbf_s, report.mttr_s) == (None, None, None) and "--steps" in report.unknown


def test_one_step_with_a_time_makes_the_goodput_known(tmp_path: Path) -> None:
    """Also if the first ones had none."""
    untimed = "".join(f"step {step} loss 9.5\n" for step in range(1, 4))
    timed = "".join(f"2026-11-24 01:{step:02d}:00 step {step} loss 9.5\n" for step in range(4, 30))
    (tmp_path / "job.log").write_text(f"2026-11-24 01:00:00 start\n{untimed}{timed}")
    ledger = GoodputLedger()
    for event in imported(tmp_path / "job.log").events:
        ledger.feed(event)
    report = ledger.report()
    assert report.timed and report.goodput is not None and report.goodput > 0.5


def test_a_rank_is_quoted_without_the_prefix_of_torch(tmp_path: Path) -> None:
    """The exception comes first, not ``[rank1]: Traceback``."""
    (incident,) = imported(untimed(tmp_path)).incidents
    assert incident.summary == "rank 1 on node0: ValueError: bad batch"
    told = {(failure.message or "").splitlines()[0] for failure in incident.failures if failure.message}
    assert told <= {"ValueError: bad batch"}


def test_the_end_of_files_is_not_the_state_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever shows the job says that its end is not known, and no command says that it runs."""
    log = tmp_path / "job.ftlog"
    assert main(["import", str(untimed(tmp_path / "files")), "-o", str(log)]) == 0
    capsys.readouterr()
    shown = {}
    for command in ("jobs", "status", "explain", "goodput", "logbook"):
        assert main([command, "--store", f"file:{log}"]) == 0
        shown[command] = " ".join(capsys.readouterr().out.split())
    assert "imported not known 1 " in shown["jobs"]
    assert "not known: the imported files end while the job was recovering" in shown["status"]
    assert "master" not in shown["status"]
    assert shown["explain"].startswith("i1: open where the imported files end")
    assert "what was done? not known: the imported files end here" in shown["explain"]
    assert "goodput not known" in shown["goodput"] and "do not show how the job ended" in shown["goodput"]
    assert "**State**: not known" in shown["logbook"]
    assert main(["logs", "--store", f"file:{log}"]) == 4
    assert "evidence was read from" in (told := capsys.readouterr().err) and "torchrun.out:2" in told
    assert main(["report", "--store", f"file:{log}", "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "The files do not show how the job ended" in page and "The job is recovering" not in page


def test_a_gap_is_an_event(slurm: Path) -> None:
    """No line between 04:54:28 and 05:00:10: that is a fact, and the report names it."""
    result = imported(slurm)
    (gap,) = result.of("gap.found")
    assert (gap.data.end - gap.data.begin) / 1e9 == pytest.approx(341.877)
    assert gap.data.place == "slurm-4711.out:431"


@pytest.mark.parametrize(
    ("state", "cls", "outcome"),
    [
        ("OUT_OF_MEMORY", "oom-host", "failed"),
        ("PREEMPTED", "signal-preemption", "stopped"),
        ("NODE_FAIL", "signal-preemption", "failed"),
        ("CANCELLED by 1000", "signal-preemption", "stopped"),
    ],
)
def test_a_record_alone(tmp_path: Path, state: str, cls: str, outcome: str) -> None:
    """Without any log the record shows class and end."""
    row = f"7|job|{state}|0:9|2026-11-24T01:00:00|2026-11-24T02:00:00|n1|"
    (tmp_path / "sacct").write_text(f"{SACCT.splitlines()[0]}\n{row}\n")
    result = imported(tmp_path)
    assert [one.cls for one in result.incidents] == [cls]
    (finished,) = result.of("job.finished")
    assert (finished.data.outcome, finished.time) == (outcome, result.events[-1].time)


def test_a_completed_job_has_no_incident(tmp_path: Path) -> None:
    """COMPLETED and steps: succeeded, nothing else."""
    row = "7|job|COMPLETED|0:0|2026-11-24T01:00:00|2026-11-24T02:00:00|n1|"
    (tmp_path / "sacct").write_text(f"{SACCT.splitlines()[0]}\n{row}\n")
    (tmp_path / "slurm-7.out").write_text(steps(10, 50, 60, 30))
    result = imported(tmp_path)
    assert not result.incidents
    assert [event.data.outcome for event in result.of("job.finished")] == ["succeeded"]


def test_an_oom_kill_in_the_log(tmp_path: Path) -> None:
    """slurmstepd's line explains the killed task: its class is the host's memory."""
    text = steps(10, 20, 60, 5)
    text += (
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9.0. Some of the step tasks have been OOM Killed.\n"
    )
    text += "srun: error: n1: task 0: Out Of Memory\n"
    (tmp_path / "slurm-9.out").write_text(text)
    result = imported(tmp_path)
    assert result.incidents[0].cls == "oom-host"


def event(reason: str, name: str, message: str, at: str, kind: str = "Pod") -> dict[str, Any]:
    about = {"kind": kind, "namespace": "ml", "name": name}
    kept = {"apiVersion": "v1", "kind": "Event", "type": "Warning", "metadata": {"name": f"{name}.1"}}
    return {**kept, "reason": reason, "message": message, "involvedObject": about, "lastTimestamp": at}


def kubernetes(folder: Path, *items: dict[str, Any]) -> Path:
    listed = {"apiVersion": "v1", "items": list(items), "kind": "List", "metadata": {"resourceVersion": ""}}
    (folder / "events.json").write_text(json.dumps(listed, indent=4))
    for number in (0, 1):
        lines = steps(10, 30, 120, 10, rank="").splitlines()
        text = "\n".join(f"2026-11-24T{line[11:19]}.5Z {line}" for line in lines)
        (folder / f"train-{number}.log").write_text(f"{text}\n")
    return folder


def test_kubectl_events_and_logs(tmp_path: Path) -> None:
    """An evicted pod, and the end of its Job."""
    started = [event("Started", f"train-{n}", "Started container main", "2026-11-24T01:01:00Z") for n in (0, 1)]
    evicted = event("Evicted", "train-1", "The node was low on resource: memory.", "2026-11-24T01:08:00Z")
    over = event("BackoffLimitExceeded", "train", "Job has reached its limit", "2026-11-24T01:08:30Z", kind="Job")
    result = imported(kubernetes(tmp_path, *started, evicted, over))
    assert result.found.collected.source == "kubectl"
    assert result.found.story.hosts == {"train-0": 1, "train-1": 1}
    (incident,) = result.incidents
    assert incident.nodes[0] == "train-1"
    assert incident.cls in ("oom-host", "signal-preemption")
    assert incident.job_ended == "failed"
    assert result.of("workers.started")[0].time == read_time("2026-11-24T01:01:00Z").ns


def test_the_state_of_a_container(tmp_path: Path) -> None:
    """``kubectl get pods -o json``: the container was killed for its memory."""
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-11-24T01:01:00Z"}
    ended["finishedAt"] = "2026-11-24T01:08:00Z"
    status = {"containerStatuses": [{"name": "main", "restartCount": 1, "lastState": {"terminated": ended}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-1"}, "status": status}
    result = imported(kubernetes(tmp_path, pod))
    assert [one.cls for one in result.incidents] == ["oom-host"]
    assert result.incidents[0].nodes[0] == "train-1"


TIMEOUT = (
    "[rank{0}]:[E1124 01:12:00.100 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 milliseconds "
    "before timing out.\n"
)


def test_a_text_with_prefixes(tmp_path: Path) -> None:
    """NCCL's watchdog in one concatenated file: the class, and the rank that is behind."""
    text = "".join(steps(10, 10, 60, 5, rank=f"[rank{rank}]: ") for rank in range(4))
    text += "".join(TIMEOUT.format(rank, 99 if rank != 2 else 98) for rank in range(4))
    (tmp_path / "job.log").write_text(text)
    result = imported(tmp_path / "job.log")
    assert result.found.collected.source == "text"
    (incident,) = result.incidents
    assert incident.cls == "nccl-timeout"
    assert result.found.story.hosts == {"node0": 4}


def test_a_traceback_in_a_text(tmp_path: Path) -> None:
    """One rank's exception; its victims are collateral."""
    text = "".join(steps(10, 10, 60, 5, rank=f"[rank{rank}]: ") for rank in range(2))
    text += "[rank1]: Traceback (most recent call last):\n"
    text += '[rank1]:   File "/job/train.py", line 7, in <module>\n[rank1]:     main()\n'
    text += "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    (tmp_path / "job.log").write_text(text)
    result = imported(tmp_path)
    assert (result.incidents[0].cls, rank_at_root(result)) == ("oom-gpu", 1)


def test_a_warning_after_which_training_goes_on_is_no_incident(tmp_path: Path) -> None:
    """Lines that match a rule, then steps: they are log.matched at most."""
    text = steps(10, 30, 60, 5, rank="[rank0]: ")
    text += "[rank0]: 2026-11-24 01:03:30,000 WARNING CUDA out of memory. Tried to allocate 2.00 GiB. Retrying\n"
    text += steps(310, 60, 220, 5, rank="[rank0]: ")
    (tmp_path / "job.log").write_text(text)
    result = imported(tmp_path)
    assert not result.incidents


def test_own_pattern_of_steps(tmp_path: Path) -> None:
    """``--steps`` names how this script prints a step."""
    lines = [f"2026-11-24 01:00:{n:02d} batch={n * 4} done\n" for n in range(1, 50)]
    (tmp_path / "job.log").write_text("".join(lines))
    result = imported(tmp_path, step=r"batch=(\d+)")
    assert result.of("workers.stepped")[0].data.step == 4
    assert result.state_step == 196


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2026-11-24T01:00:00.5Z step", "2026-11-24T01:00:00.500Z"),
        ("[2026-11-24 03:00:00,500+02:00] step", "2026-11-24T01:00:00.500Z"),
        ("W1124 01:00:00.500000 14095 torch", "2026-11-24T01:00:00.500Z"),
        ("Nov 24 01:00:00 n1 slurmd: x", "2026-11-24T01:00:00Z"),
        ("[1795482000.500000] [n1:5:2] UCX", "2026-11-24T01:00:00.500Z"),
        ("  time      : 2026-11-24_01:00:00", "2026-11-24T01:00:00Z"),
    ],
)
def test_time_stamps(line: str, expected: str) -> None:
    """The formats of the module's table."""
    found, wanted = stamp_of(line, 2026), read_time(expected)
    assert found is not None and wanted is not None
    assert found.ns == wanted.ns


@pytest.mark.parametrize("line", ["2026-13-24 01:00:00 x", "W1324 25:00:00.1 x", "no time 12", "Foo 24 01:00:00"])
def test_no_time_stamp(line: str) -> None:
    """A day or hour that does not exist is none."""
    assert stamp_of(line, 2026) is None


def test_host_lists() -> None:
    """Slurm's lists, with leading zeros."""
    assert expand_hosts("gpu[01-03,7],login") == ["gpu01", "gpu02", "gpu03", "gpu7", "login"]
    assert expand_hosts("None assigned") == []
    assert len(expand_hosts("n[1-999999999]")) <= 20_001
