"""Real hosts on one machine: each a network, UTS, IPC, PID and mount namespace with an init of its own, on one bridge.

| what happens to a host | how |
|---|---|
| its processes are killed at once | ``kill``: SIGKILL of its init; the kernel still answers peers with RST |
| power cut | ``power_off``: the cable first, so nobody is told |
| frozen, thawed | ``freeze``, ``thaw``: SIGSTOP and SIGCONT of all its processes |
| cut off, healed | ``cut``, ``heal``: its port leaves the bridge, the link stays up, frames vanish |
| deaf one way | ``deafen``: what another host sends to it goes to an address that nobody has |
| its clock is wrong | ``clock``: what its programs need in their environment |
| far away, lossy | ``Lan(slow=...)``: a switch in user space (``switch.py``) instead of the bridge |

House rules: nothing has a name on the machine. Namespaces live by processes and by descriptors of the test process, and
every init dies with it, so nothing can be left behind. Nothing here is routed to the machine's own network.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

NET, NET6 = "10.77.0.", "fd77::"
TOOLS = ("ip", "nsenter", "unshare", "setpriv", "mount")
NAMESPACES = ("--uts", "--ipc", "--pid", "--mount")
WAIT_S = 60.0

_INIT = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); [signal.pause() for _ in iter(int, 1)]"
_TUNSETIFF, _IFF_TAP_NO_PI, _CLONE_NEWNET = 0x400454CA, 0x1002, 0x40000000


@attrs.frozen
class Slow:
    """What a slow network does to every frame.

    Args:
        delay_s: one way.
        loss: the share of frames that get lost.
    """

    delay_s: float = 0.0
    loss: float = 0.0


def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts in namespaces need {', '.join(missing)} (Debian: iproute2, util-linux)"
    if os.getuid() != 0:
        return "hosts in namespaces need root"
    tried = subprocess.run(
        [
            "unshare",
            "--net",
            "--uts",
            "--ipc",
            "--pid",
            "--mount",
            "--fork",
            "ip",
            "link",
            "add",
            "br0",
            "type",
            "bridge",
        ],
        capture_output=True,
        text=True,
    )
    return f"namespaces or bridges are not to be had: {tried.stderr.strip()}" if tried.returncode else ""


def require_hosts() -> None:
    """Skip the test where there can be no hosts; fail it where they are required (``FTCORE_REQUIRE_HOSTS=1``)."""
    reason = why_not()
    if reason and os.environ.get("FTCORE_REQUIRE_HOSTS") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


class Net:
    """A network namespace, held by a descriptor."""

    def __init__(self) -> None:
        holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.holder = holder
        own = _namespace("self", "net")
        _wait(lambda: _namespace(holder.pid, "net") != own, "a network namespace")
        self.fd = os.open(f"/proc/{holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.ip("link", "set", "lo", "up")

    def release(self) -> None:
        """Let only the descriptor hold it from now on."""
        self.holder.communicate()

    def command(self, *argv: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.fd}", *argv]

    def ip(self, *argv: str) -> None:
        done = subprocess.run(self.command("ip", *argv), capture_output=True, text=True)
        assert done.returncode == 0, f"ip {argv}: {done.stderr}"

    def inside(self, work: Callable[[], Any]) -> Any:
        """Do something in a thread that lives in this namespace."""
        made: list[Any] = []

        def enter() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.setns(self.fd, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            made.append(work())

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        return made[0]

    def close(self) -> None:
        os.close(self.fd)


class Host:
    """One host.

    Args:
        lan: where it is plugged in.
        place: its number, from 1; its name is ``hN`` and its address the network's with that number behind it.
    """

    def __init__(self, lan: "Lan", place: int) -> None:
        self.lan = lan
        self.name = f"h{place}"
        self.address = f"{lan.network}{place}"
        self.mac = f"02:00:00:00:00:{place:02x}"
        self.net = Net()
        self._init: subprocess.Popen[bytes] | None = None
        self._waiters: list[subprocess.Popen[str]] = []
        self.pid = 0
        self.booted_ns = 0

    def at(self, port: int) -> str:
        """Its address with a port, as it stands in a URL."""
        return f"[{self.address}]:{port}" if ":" in self.address else f"{self.address}:{port}"

    # -- power

    @property
    def on(self) -> bool:
        """It was booted, and not killed since."""
        return self._init is not None

    def boot(self) -> None:
        """Start its init, with a ``/dev/shm`` and an ``/etc/hosts`` of its own."""
        script = (
            f"mount -t tmpfs -o size=256m tmpfs /dev/shm && mount --bind {self.lan.hosts_file} /etc/hosts && "
            f'hostname {self.name} && exec {sys.executable} -ISc "$0"'
        )
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        command = self.net.command("setpriv", "--pdeathsig", "KILL", *unshare, "sh", "-c", script, _INIT)
        self._init = init = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def up() -> bool:
            assert init.poll() is None, f"{self.name} does not boot"
            children = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()
            self.pid = int(children[0]) if children else 0
            return bool(self.pid) and Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"-ISc"]

        _wait(up, f"{self.name} to boot")
        self.booted_ns = time.time_ns()

    def kill(self) -> None:
        """SIGKILL of all its processes at once; its kernel lives on and answers peers with RST."""
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._wake_waiters()  # an init is gone only when all its processes were waited for
            self._init.wait()
            self._init = None

    def power_off(self) -> None:
        """A power cut: everything is gone, and no peer is told."""
        self.cut()
        self.kill()

    # -- processes

    def spawn(self, argv: Sequence[str], **popen: Any) -> "subprocess.Popen[str]":
        """Start a program on the host; the process returned waits for it and ends as it does."""
        command = ["nsenter", "-t", str(self.pid), "--net", *NAMESPACES, f"-w{popen.pop('cwd', Path.cwd())}"]
        popen = {"stdin": subprocess.DEVNULL, "text": True} | popen
        process = subprocess.Popen([*command, "--", *argv], **popen)
        self._waiters.append(process)
        return process

    def _wake_waiters(self) -> None:
        """``nsenter`` stops itself when the program that it waits for is stopped."""
        for process in self._waiters:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)

    def processes(self, word: str = "") -> dict[int, str]:
        """Its living processes, init excepted, by the machine's process ids: those with ``word`` in the command."""
        found: dict[int, str] = {}
        if self._init is None:
            return found
        try:
            own = _namespace(self.pid, "pid")
        except OSError:
            return found
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.pid:
                with contextlib.suppress(OSError):
                    if _namespace(entry.name, "pid") == own:
                        line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        if word in line and line:  # a zombie has none
                            found[int(entry.name)] = line
        return found

    def signal(self, number: int, word: str = "") -> list[int]:
        """Send a signal to its processes (those with ``word`` in the command); returns to which."""
        found = list(self.processes(word))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGCONT:
            self._wake_waiters()
        return found

    def freeze(self) -> None:
        """SIGSTOP of all processes, until none runs that was forked meanwhile."""
        while {pid for pid in self.processes() if _state(pid) not in "TtZX"}:
            self.signal(signal.SIGSTOP)
        _wait(lambda: all(p.poll() is not None or _state(p.pid) == "T" for p in self._waiters), "its waiters to stop")

    def thaw(self) -> None:
        """SIGCONT of all processes."""
        self.signal(signal.SIGCONT)

    # -- cable

    def cut(self) -> None:
        """Pull the cable: the link stays up, but nothing passes and nobody is told."""
        self.lan.unplug(self)

    def heal(self) -> None:
        """Put it back."""
        self.lan.plug(self)

    def deafen(self, to: "Host") -> None:
        """Nothing that ``to`` sends reaches this host; the other way all does."""
        to.net.ip("neigh", "replace", self.address, "lladdr", "02:00:00:00:ff:ff", "nud", "permanent", "dev", "eth0")

    def undeafen(self, to: "Host") -> None:
        """Hear it again."""
        to.net.ip("neigh", "del", self.address, "dev", "eth0")

    def close(self) -> None:
        self.kill()
        for process in self._waiters:
            process.wait()
        self.net.close()


class Lan:
    """Hosts on one bridge, or on a slow switch; and ``eye``, a network namespace beside them to look from.

    Args:
        count: how many hosts.
        place: a directory of the test's own.
        slow: what the network does to frames; None: nothing.
        ipv6: the hosts have addresses of IPv6 alone.
    """

    def __init__(self, count: int, place: Path, slow: Slow | None = None, ipv6: bool = False) -> None:
        self.network = NET6 if ipv6 else NET
        self.hosts_file = place / "etc-hosts"
        names = "".join(f"{self.network}{i} h{i}\n" for i in range(1, count + 1))
        self.hosts_file.write_text(f"127.0.0.1 localhost\n{names}")
        self._switch = Net()
        self._switch.release()
        self._slow: subprocess.Popen[str] | None = None
        self._slow_cut: set[str] = set()
        self.hosts = [Host(self, i) for i in range(1, count + 1)]
        self.eye = Net()
        wires = [(h.name, h.net, h.address, h.mac) for h in self.hosts]
        wires.append(("eye", self.eye, f"{self.network}254", "02:00:00:00:00:fe"))
        if slow is None:
            self._bridge(wires)
        else:
            self._user_space(wires, slow)
        for _, net, _, _ in wires:
            net.release()
        for host in self.hosts:
            host.boot()

    def _bridge(self, wires: Sequence[tuple[str, Net, str, str]]) -> None:
        self._switch.ip("link", "add", "br0", "type", "bridge")
        self._switch.ip("link", "set", "br0", "up")
        for name, net, address, mac in wires:
            peer = ("peer", "name", "eth0", "address", mac, "netns", str(net.holder.pid))
            self._switch.ip("link", "add", name, "type", "veth", *peer)
            self._switch.ip("link", "set", name, "master", "br0", "up")
            self._up(net, address)

    def _user_space(self, wires: Sequence[tuple[str, Net, str, str]], slow: Slow) -> None:
        taps = {name: net.inside(_tap) for name, net, _, _ in wires}
        command = [sys.executable, str(Path(__file__).with_name("switch.py")), str(slow.delay_s), str(slow.loss)]
        command = ["setpriv", "--pdeathsig", "KILL", *command, *(f"{name}={fd}" for name, fd in taps.items())]
        self._slow = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=tuple(taps.values()))
        for name, net, address, mac in wires:
            net.ip("link", "set", "eth0", "address", mac, "txqueuelen", "5000")
            self._up(net, address)
            os.close(taps[name])

    def _up(self, net: Net, address: str) -> None:
        # a new address of IPv6 would not be used before it was asked after for a second
        net.ip("addr", "add", *((f"{address}/64", "nodad") if ":" in address else (f"{address}/24",)), "dev", "eth0")
        net.ip("link", "set", "eth0", "up")

    def unplug(self, host: Host) -> None:
        if self._slow is None:
            self._switch.ip("link", "set", host.name, "nomaster")
        else:
            self._tell(self._slow_cut | {host.name})

    def plug(self, host: Host) -> None:
        if self._slow is None:
            self._switch.ip("link", "set", host.name, "master", "br0")
        else:
            self._tell(self._slow_cut - {host.name})

    def _tell(self, cut: set[str]) -> None:
        assert self._slow is not None and self._slow.stdin is not None
        self._slow_cut = cut
        self._slow.stdin.write(json.dumps(sorted(cut)) + "\n")
        self._slow.stdin.flush()

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        if self._slow is not None:
            self._slow.kill()
            self._slow.communicate()
        self.eye.close()
        self._switch.close()


@contextlib.contextmanager
def lan(count: int, place: Path, slow: Slow | None = None, ipv6: bool = False) -> Iterator[Lan]:
    """So many hosts, gone at the end."""
    require_hosts()
    made = Lan(count, place, slow, ipv6)
    try:
        yield made
    finally:
        made.close()


def clock(seconds: int) -> dict[str, str]:
    """What makes the wall clock of a Python program on a host wrong by so much."""
    path = [str(Path(__file__).with_name("clock")), os.environ.get("PYTHONPATH", "")]
    return {"CLOCK_OFF_S": str(seconds), "PYTHONPATH": os.pathsep.join(filter(None, path))}


def environ(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program on a host: this one's, without what belongs to ftcore."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FTCORE_", "PET_"))}
    return kept | {"no_proxy": "*", "NO_PROXY": "*"} | dict(changes)


def _tap() -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TAP_NO_PI))
    return fd


def _namespace(pid: int | str, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _wait(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)
