"""A real Slurm on the hosts of ``tests/chaos/cluster/hosts.py``: a controller on the first, a slurmd on each other one.

| what happens | how |
|---|---|
| a node loses power | ``host.power_off()``, and ``start_node`` after ``boot`` and ``heal`` |
| slurmd is killed, its tasks live | ``host.signal(SIGKILL, "slurmd -D")`` |
| partition | ``host.cut()``, ``host.heal()`` |
| frozen | ``host.freeze()``, ``host.thaw()`` |
| the controller is killed and starts again | ``restart_controller`` |

Time constants are short: a silent node is down after ten seconds, a requeued job runs again after ten.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ftcore_slurm.control import beside_python
from harness import wait_until
from hosts import Host, Lan, environ, lan

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
SPEAKS = {"LANG": "C.UTF-8"}

CONF = """\
ClusterName=ftcore
SlurmctldHost={controller}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=100000
MpiDefault=none
ReturnToService=1
JobRequeue=1
SlurmctldTimeout=10
SlurmdTimeout={silent_s}
MessageTimeout=5
TCPTimeout=2
InactiveLimit=0
KillWait=5
UnkillableStepTimeout=60
MinJobAge=600
BatchStartTimeout=10
CompleteWait=0
PropagateResourceLimits=NONE
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 State=UP
"""


def require_slurm() -> None:
    """Skip the test without Slurm; fail it where it is required (``FTCORE_REQUIRE_SLURM=1``)."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    reason = f"{', '.join(missing)} is missing (Debian: slurmctld slurmd slurm-client munge)"
    if missing and os.environ.get("FTCORE_REQUIRE_SLURM") == "1":
        pytest.fail(reason)
    if missing:
        pytest.skip(reason)


class SlurmCluster:
    """The daemons.

    Args:
        where: the hosts.
        root: a directory for state and messages.
        silent_s: seconds after which a silent node is down.
    """

    def __init__(self, where: Lan, root: Path, silent_s: int) -> None:
        self.lan, self.root = where, root
        self.controller, *self.nodes = where.hosts
        for name in ("state", "spool"):
            (root / name).mkdir(parents=True)
        self.env = environ({"SLURM_CONF": str(root / "slurm.conf"), **SPEAKS})
        self.env["PATH"] += ":/usr/sbin:/sbin"
        nodes = "\n".join(
            f"NodeName={host.name} NodeAddr={host.address} CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 "
            "RealMemory=1000 State=UNKNOWN"
            for host in self.nodes
        )
        conf = CONF.format(
            controller=self.controller.name,
            address=self.controller.address,
            root=root,
            nodes=nodes,
            silent_s=silent_s,
        )
        (root / "slurm.conf").write_text(conf)
        (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def start(self) -> None:
        """Start everything, and wait until all nodes are idle."""
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = [f"--{name}={self.root}/munge.{name.split('-')[0]}" for name in ("key-file", "pid-file", "log-file")]
        files += [f"--seed-file={self.root}/munge.seed", f"--socket={self.root}/munge.socket"]
        self._daemon(self.controller, "munged", "--foreground", "--force", *files)
        wait_until(lambda: (self.root / "munge.socket").exists(), "munged")
        self.start_controller()
        for host in self.nodes:
            self.start_node(host)
        wait_until(lambda: self.states() == ["idle"] * len(self.nodes), "idle nodes")

    def _daemon(self, host: Host, *argv: str) -> None:
        with (self.root / f"{argv[0]}.{host.name}.out").open("ab") as log:
            host.spawn(argv, stdout=log, stderr=log, env=self.env)

    def start_controller(self) -> None:
        self._daemon(self.controller, "slurmctld", "-D", "-f", str(self.root / "slurm.conf"))
        wait_until(lambda: self.ask("scontrol", "ping").returncode == 0, "the controller")

    def restart_controller(self) -> None:
        """It is killed, and starts again with the state that it had saved."""
        self.controller.signal(signal.SIGKILL, "slurmctld -D")
        wait_until(lambda: not self.controller.processes("slurmctld -D"), "the end of the controller")
        self.start_controller()

    def start_node(self, host: Host) -> None:
        self._daemon(host, "slurmd", "-D", "-N", host.name, "-f", str(self.root / "slurm.conf"))

    # -- users' commands, on the controller's host

    def ask(self, *argv: str, cwd: Path | None = None, timeout: float = 60.0) -> "subprocess.CompletedProcess[str]":
        process = self.controller.spawn(
            argv, env=self.env, cwd=cwd or self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def done(self, *argv: str, cwd: Path | None = None) -> str:
        """What a command prints that must succeed."""
        told = self.ask(*argv, cwd=cwd)
        assert told.returncode == 0, f"{argv}: {told.stdout} {told.stderr}"
        return told.stdout

    def states(self) -> list[str]:
        return self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split()

    def state_of(self, host: Host) -> str:
        return self.done("sinfo", "-h", "-N", "-p", "main", "-n", host.name, "-o", "%T").strip()

    def job_state(self, number: str) -> str:
        return self.ask("squeue", "-h", "-j", number, "-t", "all", "-o", "%T").stdout.strip()

    def field(self, number: str, name: str) -> str:
        """A field of ``scontrol show job``."""
        told = self.done("scontrol", "--oneliner", "show", "job", number).split()
        return next(word.partition("=")[2] for word in told if word.startswith(f"{name}="))


@contextlib.contextmanager
def slurm(root: Path, nodes: int = 4, silent_s: int = 10) -> Iterator[SlurmCluster]:
    """A cluster with so many nodes, gone at the end; one that is silent for so many seconds is down."""
    require_slurm()
    place = root / "slurm"
    place.mkdir()
    with lan(nodes + 1, root) as where:
        made = SlurmCluster(where, place, silent_s)
        made.start()
        yield made


PATIENCE_S = 120.0
"""Slurm takes half a minute to call a node down, and another quarter to start a requeued job."""


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.2)


class Submitted:
    """A job that was submitted with ``ftctl slurm script``.

    Args:
        cluster: where.
        place: its working directory.
        flags: for ``ftctl slurm script``.
        command: for ``ftrun``.
        env: further variables, as ``NAME=VALUE``.
    """

    def __init__(
        self, cluster: SlurmCluster, place: Path, flags: list[str], command: list[str], env: Sequence[str] = ()
    ) -> None:
        place.mkdir()
        self.cluster, self.place = cluster, place
        state = ["env", f"FTCORE_SLURM_DIR={place}/state", f"XDG_STATE_HOME={place}/home", "OMP_NUM_THREADS=1", *env]
        self._env = state
        script = str(place / "job.sbatch")
        extra = ["--sbatch=--output=out", "--sbatch=--job-name=job"]
        made = [beside_python("ftctl"), "slurm", "script", *flags, *extra, "--output", script, "--", *command]
        cluster.done(*state, *made, cwd=place)
        self.number = cluster.done(*state, "sbatch", "--parsable", script, cwd=place).strip()
        self.name = f"job-{self.number}"

    @property
    def state(self) -> str:
        return self.cluster.job_state(self.number)

    def output(self) -> str:
        path = self.place / "out"
        return path.read_text() if path.exists() else ""

    def store(self) -> str:
        """The URL of its log, as its output says."""
        lines = [line for line in self.output().splitlines() if "the log of" in line]
        return lines[-1].partition(" is in ")[2].partition(",")[0] if lines else ""

    def ftctl(self, *argv: str) -> str:
        own = f"{self.place}/state/{self.name}"
        env = [f"FTCORE_STORE={self.store()}", f"FTCORE_ETCD_PASSWORD_FILE={own}/etcd.password"]
        env += [f"FTCORE_TOKEN_FILE={own}/token"]
        return self.cluster.done(*self._env, *env, beside_python("ftctl"), "--job", self.name, *argv, cwd=self.place)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its events of a type."""
        found = [json.loads(line) for line in self.ftctl("events", "--format", "json").splitlines()]
        return [event for event in found if event["type"] == kind]

    def world(self) -> list[Host]:
        """The hosts that train, in the order of their ranks."""
        status = json.loads(self.ftctl("status", "--format", "json"))
        names = [node["node"] for node in status["nodes"] if node["state"] == "running"]
        return [self.cluster.lan[name] for name in names]

    def steps(self) -> dict[str, int]:
        """The newest step of each rank."""
        return {path.suffix[1:]: int(path.read_text() or 0) for path in self.place.glob("step.*")}

    def trains(self, ranks: int, after: int = 0) -> None:
        """Wait until all ranks have gone on by some steps."""
        known = self.steps()
        until(
            lambda: (
                len(found := self.steps()) >= ranks
                and all(step > max(after, known.get(rank, 0)) + 5 for rank, step in found.items())
            ),
            f"steps of {ranks} ranks: {self.steps()}, {self.output()[-3000:]}",
        )

    def end(self) -> str:
        """Let the script end; returns the state of the job."""
        (self.place / "finish").touch()
        until(lambda: self.state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), f"the end: {self.output()}")
        return self.state
