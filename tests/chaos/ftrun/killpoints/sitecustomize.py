"""Kills the master at a named place; on the path of a test's processes, and idle in all but masters.

The file named by ``KILLPOINT`` holds the place; it is taken by whoever dies of it.

| place | the master dies |
|---|---|
| ``before TYPE`` | before it writes a group whose fact is of that type |
| ``after TYPE`` | when that is durable and nobody was told |
| ``before STEP``, ``after STEP`` | at a step of its keeper, named in ``STEPS`` |

Devices are checked in no time, too: what is tested is who has them checked. With ``EVERY_ABILITY``, ``ftrun`` believes
a policy file every ability: what agents answer to orders that they cannot carry out is tested as well.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

STEPS = ("save_snapshot", "record_snapshot", "add_piece", "name_piece", "truncate")
"""What a keeper does, as its places are called: a snapshot is saved and, in etcd, recorded when its parts are there; a
piece is added to the archive, and gets its name when it is whole; the live log is cut."""


def _reached(point: Path, when: str, names: set[str]) -> None:
    try:
        if point.read_text() not in {f"{when} {name}" for name in names}:
            return
        point.rename(point.with_suffix(".hit"))
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(point: Path) -> None:
    from ftcore.logs.etcd import EtcdLog
    from ftcore.logs.etcd_retention import EtcdRetention
    from ftcore.logs.outfile import OutFile
    from ftcore.logs.pieces import FileArchive
    from ftcore.logs.sqlite import SqliteLog

    for backend in (SqliteLog, EtcdLog):
        _wrap_async(point, backend, "append", None)
        _wrap_async(point, backend, "save_snapshot", "save_snapshot")
        _wrap_async(point, backend, "truncate", "truncate")
    _wrap_async(point, EtcdRetention, "_fenced", "record_snapshot")
    _wrap(point, FileArchive, "add", "add_piece")
    _wrap(point, OutFile, "finish", "name_piece")


def _wrap_async(point: Path, where: Any, name: str, step: str | None) -> None:
    original = getattr(where, name)

    async def killed(self: Any, *args: Any, **options: Any) -> Any:
        names = {step} if step is not None else {event.type for event in args[0] if event.kind == "fact"}
        _reached(point, "before", names)
        answer = await original(self, *args, **options)
        _reached(point, "after", names)
        return answer

    setattr(where, name, killed)


def _wrap(point: Path, where: Any, name: str, step: str) -> None:
    original = getattr(where, name)

    def killed(self: Any, *args: Any) -> Any:
        _reached(point, "before", {step})
        answer = original(self, *args)
        _reached(point, "after", {step})
        return answer

    setattr(where, name, killed)


def _check_in_no_time() -> None:
    from ftcore.runtime.checks import device
    from ftcore.runtime.checks.protocol import CheckReport

    device.check = lambda spec, say: say(CheckReport(name="matmul", verdict="passed"))


def _believe() -> None:
    from ftcore.policies import abilities

    abilities.CARRIED_OUT = tuple(abilities.Ability)


if os.environ.get("EVERY_ABILITY") and any("ftrun" in word for word in sys.orig_argv):
    _believe()
if os.environ.get("KILLPOINT"):
    if "ftcore.cli.master" in sys.orig_argv:
        _arm(Path(os.environ["KILLPOINT"]))
    elif sys.orig_argv[-2:] == ["ftcore.runtime.checks", "device"]:
        _check_in_no_time()
