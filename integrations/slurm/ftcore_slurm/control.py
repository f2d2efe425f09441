"""Slurm's own commands: ``scontrol``, ``sinfo``, ``squeue``, ``srun``.

They speak the cluster's own version of the protocol and need no daemon and no rights beyond the user's. Their text
output is used: ``--json`` needs a plugin that not every Slurm has.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from ftcore.errors import Refused, Unreachable

ANSWER_S: Final = 20.0
"""Longest wait for a command; a controller that fails over takes some seconds."""

CONNECT_S: Final = 1.0
"""Longest time to connect to a node that lives."""

CONNECTIONS: Final = 64
"""Nodes that are connected to at the same time."""

_AWAY: Final = ("Unable to contact slurm controller", "Socket timed out", "Connection refused")
"""Messages of a controller that does not answer; what else fails is refused."""


@attrs.frozen
class NodeView:
    """How Slurm sees a node.

    Args:
        name: its name.
        state: long form of ``sinfo``'s state, as ``allocated``, ``down``, ``drained``, without flags.
        reason: why it is down or drained; empty: none is given.
    """

    name: str
    state: str
    reason: str = ""


def beside_python(name: str) -> str:
    """The path of a program of this Python's environment, which need not be in ``PATH``."""
    path = Path(sys.executable).with_name(name)
    return str(path) if os.access(path, os.X_OK) else shutil.which(name) or name


async def ask(*argv: str, timeout_s: float = ANSWER_S, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> str:
    """Run a command and return what it prints.

    Args:
        argv: the command.
        timeout_s: longest time.
        env: its environment; None: this process's, without variables that filter what Slurm lists.
        stdin: its standard input.

    Raises:
        Unreachable: the controller does not answer, or the command is missing.
        Refused: the command failed; the text is Slurm's.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=unfiltered(os.environ if env is None else env),
        )
    except OSError as error:
        raise Unreachable(f"{argv[0]}: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(stdin)
    except TimeoutError:
        raise Unreachable(f"{argv[0]} did not answer within {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode == 0:
        return out.decode(errors="replace")
    if process.returncode is not None and process.returncode < 0:  # Slurm ends a job, and this with it
        raise Unreachable(f"{argv[0]} was ended by signal {-process.returncode}")
    text = err.decode(errors="replace").strip().replace("\n", "; ") or f"exit code {process.returncode}"
    if any(each in text for each in _AWAY):
        raise Unreachable(text)
    raise Refused(text)


def unfiltered(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without the user's own filters for ``squeue`` and ``sinfo``."""
    return {name: value for name, value in env.items() if not name.startswith(("SQUEUE_", "SINFO_"))}


async def nodes_of(job: str) -> tuple[str, ...]:
    """The nodes that a job has now.

    Args:
        job: Slurm's number of it.

    Raises:
        Unreachable: as ``ask``.
        Refused: there is no such job.
    """
    listed = (await ask("squeue", "--all", "--noheader", "--jobs", job, "--format=%N")).strip()
    return tuple((await ask("scontrol", "show", "hostnames", listed)).split()) if listed else ()


async def incarnation_of(job: str) -> tuple[int, str]:
    """How often a job was requeued, and the host of its batch script.

    Raises:
        Unreachable, Refused: as ``ask``.
    """
    fields = await _job(job)
    return int(fields.get("Restarts", "0")), fields.get("BatchHost", "")


async def exclude(job: str, nodes: Sequence[str]) -> None:
    """Have Slurm start a pending job on none of these nodes, and on none that were excluded before.

    Raises:
        Unreachable, Refused: as ``ask``.
    """
    before = (await _job(job)).get("ExcNodeList", "(null)")
    listed = ",".join([*([before] if before != "(null)" else []), *nodes])
    await ask("scontrol", "update", f"JobId={job}", f"ExcNodeList={listed}")


async def _job(job: str) -> dict[str, str]:
    words = (await ask("scontrol", "--oneliner", "show", "job", job)).split()
    return dict(word.partition("=")[::2] for word in words)


async def views_of(nodes: Sequence[str]) -> dict[str, NodeView]:
    """How Slurm sees these nodes, by name."""
    text = await ask("sinfo", "--all", "--noheader", "--Node", "--nodes", ",".join(nodes), "--format=%N|%T|%E")
    return {view.name: view for view in map(_view, text.splitlines()) if view is not None}


def _view(line: str) -> NodeView | None:
    name, bar, rest = line.partition("|")
    state, bar, reason = rest.partition("|")
    if not bar:
        return None
    base = state.rstrip("*~#!%$@^-+").lower()
    return NodeView(name.strip(), base, "" if reason.strip() in ("none", "") else reason.strip())


async def drain(node: str, reason: str) -> None:
    """Have Slurm give a node to no further job; what runs there goes on.

    Args:
        node: Slurm's name of it.
        reason: what administrators read.

    Raises:
        Unreachable: as ``ask``.
        Refused: this user may not.
    """
    text = reason[:200].replace('"', "'").replace("\n", " ")
    await ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={text}")


async def seconds_left(job: str) -> float | None:
    """Seconds until a job's time limit; None: it has none.

    Raises:
        Unreachable, Refused: as ``ask``.
    """
    text = (await ask("squeue", "--all", "--noheader", "--jobs", job, "--format=%L")).strip()
    days, _, clock = text.rpartition("-")
    try:
        parts = [int(each) for each in clock.split(":")]
        seconds = sum(value * float(60**place) for place, value in enumerate(reversed(parts)))
        return int(days or "0") * 86400.0 + seconds
    except ValueError:
        return None  # UNLIMITED, INVALID


async def addresses_of(nodes: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The addresses at which Slurm reaches nodes, and the ports of their slurmd, by name.

    Raises:
        Unreachable: as ``ask``.
        Refused: as ``ask``, or Slurm gives no address of one of them.
    """
    found: dict[str, tuple[str, int]] = {}
    default = ""
    for line in (await ask("scontrol", "--oneliner", "show", "node", ",".join(nodes))).splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if "NodeAddr" not in fields or "NodeName" not in fields:
            continue
        if "Port" not in fields:
            default = default or await _slurmd_port()
        port = fields.get("Port", default)
        found[fields["NodeName"]] = fields["NodeAddr"], int(port.strip().partition("-")[0])
    if missing := [node for node in nodes if node not in found]:
        raise Refused(f"Slurm gives no address of {', '.join(missing)}")
    return found


async def _slurmd_port() -> str:
    lines = (line.partition("=") for line in (await ask("scontrol", "show", "config")).splitlines())
    return next((value for name, _, value in lines if name.strip() == "SlurmdPort"), "6818")


async def unreachable(nodes: Sequence[str]) -> list[str]:
    """Those nodes whose slurmd cannot be connected to: Slurm itself notices only later that a node is dead.

    Raises:
        Unreachable, Refused: as ``addresses_of``.
    """
    places = await addresses_of(nodes) if nodes else {}
    together = asyncio.Semaphore(CONNECTIONS)

    async def answers(node: str) -> bool:
        async with together:
            return await _accepts(*places[node])

    found = await asyncio.gather(*map(answers, nodes))
    return [node for node, well in zip(nodes, found, strict=True) if not well]


async def _accepts(address: str, port: int) -> bool:
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(address, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
