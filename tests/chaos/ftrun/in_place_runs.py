"""Runs of ``jobs/in_place.py`` with faults, and what the tests ask of them."""

import json
import re
from pathlib import Path
from typing import Any

from harness import Ftrun, Run, ftrun

STEPS = 40
ONE_NODE = ("--nproc-per-node", "2")
TWO_NODES = ("--local-nodes", "2", "--nproc-per-node", "1")
COLLECTIVE = "raise dist.DistBackendError('a link is down')"
DAMAGED = "damage(); raise ft.MemoryDamaged('a parameter')"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
XID = "print('NVRM: Xid (PCI:0000:38:00): 94, pid=1, name=python', flush=True); time.sleep(0.5); "
CUT = "from ftcore.worker import _connections; _connections.shut_down()"
GIL_HELD = "import ctypes; lock = c.PyDLL(None).pthread_mutex_lock; at = (ctypes.c_char * 64)(); lock(at); lock(at)"
STOPPED = "os.kill(os.getpid(), signal.SIGSTOP)"


def start(job: Ftrun, *argv: str, mode: tuple[str, ...] = ("built",), faults: dict[int, dict[str, Any]]) -> Run:
    """Start the script with faults by rank, and by place and step."""
    for rank, found in faults.items():
        listed = {place: codes if isinstance(codes, list) else [codes] for place, codes in found.items()}
        job.drop(f"at.{rank}", json.dumps(listed))
    return job.start(*argv, script="in_place.py", preload=False, args=(str(STEPS), *mode))


def ends(run: Run) -> dict[int, tuple[int, str]]:
    """By rank, its process and its weights at its end."""
    found = re.findall(r"rank (\d+) of process (\d+) ends with ([0-9a-f]{16})", run.stdout())
    return {int(rank): (int(pid), digest) for rank, pid, digest in found}


def remedies(job: Ftrun) -> list[str]:
    """The policies that resolved the incidents, in order."""
    return [event.data.policy for event in job.of("incident.resolved")]


def pids(job: Ftrun, round_: int) -> list[int]:
    """The processes of a round, by rank."""
    started = [event.data for event in job.of("workers.started") if event.data.round == round_]
    return [pid for each in sorted(started, key=lambda each: each.node) for pid in each.pids]


def undisturbed_weights(tmp_path: Path, *mode: str) -> set[str]:
    """The weights of a run to which nothing happens."""
    with ftrun(tmp_path) as job:
        run = start(job, *ONE_NODE, mode=("built", *mode), faults={})
        assert run.end() == 0
        found = {digest for _, digest in ends(run).values()}
        assert len(found) == 1
        return found
