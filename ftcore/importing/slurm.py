"""Slurm: records of ``sacct -P`` (``--parsable2``), job logs, logs of slurmd and slurmctld.

``sacct`` needs at least the columns JobID, State, Start and End; JobName, ExitCode, NodeList and AllocTRES are read if
they are there. A requeued job has a row for each start (``sacct --duplicates``), and each becomes a run. Pure.
"""

import re
from typing import Any

import attrs

from ftcore.importing.model import UNKNOWN, Act, Collected, FileReading, Sighting
from ftcore.importing.stamps import read_time

_LOG_NAME = re.compile(
    r"(?:^|/)(?:slurm-\d{1,12}(?:_\d{1,9})?\.(?:out|err)|slurmd?(?:ctld)?(?:[.-][\w.-]{1,80})?\.log)$"
)
_MARKS = (b"slurmstepd: ", b"slurmstepd-", b"srun: error: ", b"slurmctld version ", b"slurmd version ", b"SLURM_JOB_ID")
_HOSTS_MAX = 20_000
_GPUS = re.compile(r"\bgres/gpu(?::[\w.-]{1,40})?=(\d{1,6})\b")
_STATES = {
    "COMPLETED": ("succeeded", "completed"),
    "TIMEOUT": ("failed", "TIMEOUT: due to time limit"),
    "DEADLINE": ("failed", "DEADLINE: due to time limit"),
    "OUT_OF_MEMORY": ("failed", "OUT_OF_MEMORY"),
    "NODE_FAIL": ("failed", "NODE_FAIL: due to node failure"),
    "BOOT_FAIL": ("failed", "BOOT_FAIL: due to node failure"),
    "PREEMPTED": ("stopped", "PREEMPTED: due to preemption"),
    "REQUEUED": ("stopped", "REQUEUED"),
    "CANCELLED": ("stopped", "CANCELLED"),
    "FAILED": ("failed", "FAILED"),
}
"""Outcome of the run and the text of the evidence, by the state of a job (``man sacct``, job state codes)."""


def is_sacct(head: bytes) -> bool:
    """Whether a file begins with the header of ``sacct -P``."""
    columns = head.partition(b"\n")[0].strip().split(b"|")
    return b"JobID" in columns and b"State" in columns


def is_slurm_log(name: str, head: bytes) -> bool:
    """Whether a file is a job log or a daemon's log, by its name or its first lines."""
    return _LOG_NAME.search(name) is not None or any(mark in head for mark in _MARKS)


def read_sacct(data: bytes, reading: FileReading, collected: Collected) -> None:
    """Read the records of the job; steps are skipped.

    Args:
        data: contents of the file.
        reading: of the file; updated.
        collected: the runs are added to it.
    """
    lines = data.decode("utf-8", "replace").splitlines()
    columns = [name.strip() for name in lines[0].split("|")]
    reading.lines = len(lines)
    run = 0
    first = ""
    for number, line in enumerate(lines[1:], 2):
        row = dict(zip(columns, line.split("|"), strict=False))
        job = row.get("JobID", "").strip()
        if not job or "." in job or not row.get("State", "").strip():
            reading.understood += "." in job
            continue
        first = first or job
        if job != first:
            collected.note(f"sacct lists several jobs; only the first one, {first}, was read: use `sacct -j JOB`")
            continue
        reading.understood += 1
        _record(row, f"{reading.name}:{number}", run, collected)
        run += 1


def _record(row: dict[str, str], place: str, run: int, collected: Collected) -> None:
    collected.job = collected.job or row.get("JobName", "").strip()[:60]
    state = row["State"].split()[0].rstrip("+")
    outcome, text = _STATES.get(state, ("", ""))
    start = read_time(row.get("Start", ""))
    end = read_time(row.get("End", ""))
    hosts = expand_hosts(row.get("NodeList", ""))
    gpus = _GPUS.search(row.get("AllocTRES", ""))
    each = max(1, int(gpus[1]) // len(hosts)) if gpus is not None and hosts else 1
    for host in hosts:
        collected.hosts[host] = max(collected.hosts.get(host, 0), each)
    if hosts:
        collected.run_hosts[run] = tuple(hosts)
    known: dict[str, Any] = {"place": place, "run": run, "source": "slurm"}
    if start is not None:
        collected.sightings.append(Sighting(act=Act.SUBMITTED, when=start, text=f"Start={row['Start']}", **known))
    if not outcome:
        return  # it is pending or runs
    code = row.get("ExitCode", "").strip()
    said = f"sacct: job {row['JobID']} {text}{f', exit code {code}' if code else ''}"
    ended = Sighting(act=Act.ENDED, when=end or UNKNOWN, outcome=outcome, text=said, **known)
    collected.sightings.append(ended)


def assign_runs(collected: Collected) -> None:
    """Assign what the logs show to the runs of the records, by time."""
    starts = sorted(
        (one.when.ns, one.run)
        for one in collected.sightings
        if one.act is Act.SUBMITTED and one.source == "slurm" and one.when.ns is not None
    )
    if not starts:
        return

    def run_of(one: Sighting) -> int:
        if one.when.ns is None:
            return starts[-1][1] if len(starts) == 1 else one.run
        before = [run for ns, run in starts if ns <= (one.when.ns or 0) + 1_000_000_000]
        return before[-1] if before else starts[0][1]

    records = (Act.SUBMITTED, Act.ENDED)
    collected.sightings = [
        one if one.act in records and one.source == "slurm" else attrs.evolve(one, run=run_of(one))
        for one in collected.sightings
    ]


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list such as ``node[01-03,7],login1``; empty for ``None assigned``."""
    found: list[str] = []
    for part in re.findall(r"[^,\[\]\s]+(?:\[[\d,-]{1,2000}\])?", text[:100_000]):
        name, _, ranges = part.partition("[")
        if not ranges:
            if name not in ("None", "assigned", "(null)", "Unknown"):
                found.append(name)
            continue
        for each in ranges.rstrip("]").split(","):
            first, _, last = each.partition("-")
            if not first.isdecimal() or (last and not last.isdecimal()):
                continue
            top = min(int(last or first), int(first) + _HOSTS_MAX)
            found += [f"{name}{number:0{len(first)}d}" for number in range(int(first), top + 1)]
        if len(found) > _HOSTS_MAX:
            break
    return list(dict.fromkeys(found))[:_HOSTS_MAX]
