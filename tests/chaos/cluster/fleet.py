"""A cluster as users have it: hosts, three etcd members on the first three of them, one ``ftrun`` on each that trains.

The working directory is shared, as over NFS; state homes are not. What ``tests/chaos/ftrun/harness.py`` checks at the
end of a run is checked here too: the log verifies, no fact stands in it twice, no process is left.
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import harness
from etcd_cluster import require_etcd
from harness import PATIENCE_S, Ftrun, Run, Watch, wait_until
from hosts import Host, Lan, Slow, environ, lan

from ftcore.events.codec import decode
from ftcore.events.envelope import Event

CLIENT, PEER = 2379, 2380
MEMBERS = 3
AGENT, MASTER = "ftcore.cli.ftrun", "ftcore.cli.master"
FOLLOW = Path(__file__).with_name("follow.py")


class Etcd:
    """Three members, one on each of the first three hosts; their data outlives their host's power."""

    def __init__(self, hosts: Sequence[Host], place: Path, flags: Sequence[str] = ()) -> None:
        self.hosts = hosts[:MEMBERS]
        self._place, self._flags = place, flags
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.endpoints = ",".join(host.at(CLIENT) for host in self.hosts)

    def start(self, *hosts: Host) -> None:
        """Start the members on these hosts, or all."""
        cluster = ",".join(f"{host.name}=http://{host.at(PEER)}" for host in self.hosts)
        for host in hosts or self.hosts:
            if host.name in self._processes:
                self._processes[host.name].wait(PATIENCE_S)
            urls, peer = f"http://{host.at(CLIENT)}", f"http://{host.at(PEER)}"
            command = [
                *(require_etcd(), "--name", host.name, "--data-dir", str(self._place / f"etcd-{host.name}")),
                *("--listen-client-urls", f"{urls},http://127.0.0.1:{CLIENT}", "--advertise-client-urls", urls),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster),
                *("--unsafe-no-fsync", "--logger", "zap", *self._flags),
            ]
            with (self._place / f"etcd-{host.name}.log").open("ab") as log:
                self._processes[host.name] = host.spawn(command, stdout=log, stderr=log, env=environ({}))

    def signal(self, number: int, *hosts: Host) -> None:
        """Send a signal to the members on these hosts, or to all."""
        for host in hosts or self.hosts:
            host.signal(number, "--initial-cluster")

    def ctl(self, *argv: str, endpoints: str = "") -> subprocess.CompletedProcess[str]:
        """Run etcdctl beside the hosts."""
        command = self.hosts[0].lan.eye.command("etcdctl", "--endpoints", endpoints or self.endpoints, *argv)
        return subprocess.run(
            command, env=environ({"ETCDCTL_API": "3"}), capture_output=True, text=True, timeout=PATIENCE_S
        )

    def leader(self) -> Host:
        """The host of the member that leads."""
        found: list[Host] = []

        def look() -> bool:
            for host in self.hosts:
                told = self.ctl("endpoint", "status", "--command-timeout=1s", endpoints=host.at(CLIENT))
                found.extend([host] if told.stdout.split(", ")[4:5] == ["true"] else [])
            return bool(found)

        wait_until(look, "a member that leads")
        return found[0]

    def healthy(self) -> bool:
        return self.ctl("endpoint", "health").returncode == 0


class FarWatch(Watch):
    """Follows the log from beside the hosts, by a process of its own."""

    def __init__(self, where: Lan, store: str, job: str) -> None:
        self.store, self.job = store, job
        self.seen: list[Event] = []
        self._lan = where
        self._changed = threading.Condition()
        self._process = subprocess.Popen(self._command(), stdout=subprocess.PIPE, env=environ({}))
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _command(self, *argv: str) -> list[str]:
        return self._lan.eye.command(sys.executable, str(FOLLOW), self.store, self.job, *argv)

    def _take(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.seen.append(decode(line.strip()))
                self._changed.notify_all()

    def read(self) -> list[Event]:
        told = subprocess.run(self._command("once"), capture_output=True, timeout=PATIENCE_S, env=environ({}))
        assert told.returncode == 0, told.stderr.decode()
        return [decode(line) for line in told.stdout.splitlines()]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@attrs.frozen
class Worker:
    """A worker that lives.

    Args:
        host: where.
        pid: of the machine.
        round: its round.
        life: its agent's incarnation.
    """

    host: str
    pid: int
    round: int
    life: str


class Fleet(Ftrun):
    """Hosts, their etcd, and one job on them.

    Args:
        root: a directory of the test's own.
        where: the hosts.
        etcd: its members.
        timing: time constants that differ from the defaults.
    """

    def __init__(self, root: Path, where: Lan, etcd: Etcd, timing: dict[str, float] | None = None) -> None:
        # Hosts of different tests have the same addresses and share /var/tmp: without a prefix of its own, two tests
        # that run at once have the same sockets.
        super().__init__(root, f"etcd://{etcd.endpoints}/test-{os.urandom(4).hex()}", timing)
        self.lan, self.etcd = where, etcd
        self.env = environ({"PYTHONFAULTHANDLER": "", "OMP_NUM_THREADS": "1"} | self._timing(timing))

    def _timing(self, timing: dict[str, float] | None) -> dict[str, str]:
        return {name: value for name, value in self.env.items() if name == "FTCORE_TIMING"}

    def __getitem__(self, name: str) -> Host:
        return self.lan[name]

    def start_on(self, host: Host, *flags: str, script: str = "count.py", env: dict[str, str] | None = None) -> Run:
        """Start an agent on a host; with what is given behind ``--`` as the script's arguments."""
        home = self.home / host.name
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ftcore.cli.ftrun", "--store", self.store, "--job", self.job]
        command += ["--preload", "json" if script == "count.py" else "torch", *flags, str(harness.JOBS / script)]
        popen = self._popen({"env": self.env | {"XDG_STATE_HOME": str(home)} | (env or {})})
        run = Run(host.spawn(command, **popen))
        self.runs.append(run)
        return run

    def start_all(self, *flags: str, hosts: Sequence[str], script: str = "count.py") -> list[Run]:
        """Start an agent on each of these hosts."""
        return [self.start_on(self[name], *flags, script=script) for name in hosts]

    @property
    def events(self) -> Watch:
        if self._watch is None:
            self._watch = FarWatch(self.lan, self.store, self.job)
        return self._watch

    def ftctl(self, *argv: str) -> subprocess.CompletedProcess[str]:
        command = self.lan.eye.command(sys.executable, "-m", "ftcore.cli.ftctl", "--store", self.store, *argv)
        return subprocess.run(command, capture_output=True, text=True, env=self.env, timeout=PATIENCE_S)

    # -- what lives

    def processes(self, word: str = "") -> dict[int, str]:
        """What lives on the hosts, etcd aside, by the machine's process ids."""
        found: dict[int, str] = {}
        for host in self.lan.hosts:
            found |= {pid: line for pid, line in host.processes(word).items() if "--initial-cluster" not in line}
        return found

    def workers(self, *hosts: Host) -> list[Worker]:
        """The workers that live on these hosts, or on all."""
        started = {
            (event.data.node, pid): event.data
            for event in self.of("workers.started")
            for pid in event.data.pids
            if event.time > self[event.data.node].booted_ns  # process ids begin anew with each boot
        }
        found = []
        for host in hosts or self.lan.hosts:
            for pid in host.processes():
                by = started.get((host.name, inner_pid(pid)))
                if by is not None:
                    found.append(Worker(host.name, pid, by.round, by.incarnation))
        return found

    def world(self) -> list[Host]:
        """The hosts of the newest world, in the order of their ranks."""
        round_ = self.of("world.formed")[-1].data.round
        chunks = [event.data for event in self.of("world.members") if event.data.round == round_]
        return [self[member.node] for chunk in chunks for member in chunk.members]

    def stepped(self, round_: int, nodes: int = 1) -> Event:
        """Wait until all nodes of a round completed a step."""
        after = 0
        for _ in range(nodes):
            event = self.wait("workers.stepped", after, round=round_)
            after = event.seq
        return event

    def master_host(self) -> Host:
        """The host of the newest master."""
        return self[self.of("master.elected")[-1].data.host]

    def store_host(self) -> Host:
        """The host that serves the store of the newest round."""
        address = self.of("world.formed")[-1].data.store.rpartition(":")[0].strip("[]")
        return next(host for host in self.lan.hosts if host.address == address)

    def lost(self, host: Host, after: int = 0) -> Event:
        """The loss of a host's node."""
        return self.wait("node.lost", after, node=host.name)

    def train_again(self, after: int, nodes: int) -> Event:
        """Wait until a round that was formed behind ``after`` has stepped on all its nodes."""
        formed = self.wait("world.formed", after, nodes=nodes)
        return self.stepped(formed.data.round, nodes)

    def close(self) -> None:
        if any(run.process.poll() is None and run.pid for run in self.runs):
            living = [run for run in self.runs if run.process.poll() is None]
            assert not living, f"ftrun still runs: {[run.stderr() for run in living]}"
        super().close()

    # -- the end

    def tell(self) -> None:
        """Print the whole story; shown if the test fails."""
        events = self._watch.seen if self._watch is not None else []
        for event in events:
            if event.type != "policy.considered":
                print(f"{(event.time - events[0].time) / 1e9:8.3f} {harness.brief(event)}")
        for run in self.runs:
            print(f"--- ftrun {run.pid}", run.stdout()[-1000:], run.stderr()[-4000:], sep="\n")
        for log in self.home.rglob("*.master.log"):
            print(f"--- {log}", log.read_text()[-4000:], sep="\n")

    def end(self, *runs: Run, code: int = 0) -> None:
        """Let the job end; these agents must end with that code."""
        self.finish()
        for run in runs:
            assert run.end() == code, run.stderr()


@contextlib.contextmanager
def fleet(
    root: Path,
    count: int = 4,
    *,
    slow: Slow | None = None,
    ipv6: bool = False,
    timing: dict[str, float] | None = None,
    etcd_flags: Sequence[str] = (),
) -> Iterator[Fleet]:
    """A cluster whose leavings are checked at the end; if the body fails, its story is printed."""
    require_etcd()
    root.mkdir(exist_ok=True)
    with lan(count, root, slow, ipv6) as where:
        etcd = Etcd(where.hosts, root, etcd_flags)
        etcd.start()
        wait_until(etcd.healthy, "etcd")
        made = Fleet(root, where, etcd, timing)
        try:
            yield made
            made.close()
        finally:
            made.tell()
            for host in where.hosts:
                host.kill()
            for run in made.runs:
                run.close()
            if made._watch is not None:
                made._watch.close()


def inner_pid(pid: int) -> int:
    """A process's id in its own host; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1])
