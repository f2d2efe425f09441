"""The process in which external code runs: policies and rules from entry points.

    python -P -m ftcore.runtime.plugin_process ask                a question on stdin -> an answer, one line on stdout
    python -P -m ftcore.runtime.plugin_process describe NAME ...  the declarations of these policies
    python -P -m ftcore.runtime.plugin_process rules              the rules of installed packages

House rules: stdout has only the answer; output of external code goes to stderr. The parent always kills this process
with its whole group; if the parent dies first, stdin closes and the process ends itself. ``-P`` prevents imports from
the working directory.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import msgspec

from ftcore.errors import UsageError
from ftcore.events.policy import PolicyFaulted
from ftcore.policies.external import (
    GROUP,
    RULES_GROUP,
    External,
    Question,
    Reply,
    RuleSource,
    ask,
    declare,
    describe,
    instance,
)

LIFE_S = 60
"""Hard limit, longer than any question may take: ends a policy that blocks all threads after its master has died."""


def origin_of(entry: EntryPoint) -> str:
    """Distribution and version of an entry point, such as ``acme-policies 1.2``."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"


def main(argv: Sequence[str]) -> None:
    """Run the command of the arguments and write the result."""
    with _answers() as out:
        match argv:
            case ["ask"]:
                signal.alarm(LIFE_S)
                body = msgspec.json.encode(_ask(sys.stdin.buffer.readline()))
            case ["describe", *names]:
                body = msgspec.json.encode([_described(entry) for entry in _entries(names)])
            case _:
                body = msgspec.json.encode([_ruled(entry) for entry in entry_points(group=RULES_GROUP)])
        out.write(body + b"\n")
        out.flush()
        if argv[0] == "ask":
            _wait_for_the_end()


@contextlib.contextmanager
def _answers() -> Any:
    """The original stdout; other output is redirected to stderr."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        yield out


def _entries(names: Sequence[str]) -> list[EntryPoint]:
    return [entry for entry in entry_points(group=GROUP) if entry.name in names]


def _ask(line: bytes) -> Reply:
    question = msgspec.json.decode(line, type=Question)
    threading.Thread(target=_end_with_asker, daemon=True).start()
    found = _entries([question.policy])
    origins = [origin_of(entry) for entry in found]
    if question.origin not in origins:
        installed = " and ".join(origins) or "nothing of that name"
        return Reply(faulted=f"the job began with {question.origin}; installed on the master's host: {installed}")
    try:
        policy = instance(found[origins.index(question.origin)].load())
    except (Exception, SystemExit) as error:
        return Reply(faulted=f"cannot be loaded: {describe(error)}")
    answer = ask(policy, bytes(question.job), question.options, question.effect)
    return Reply(faulted=answer.error) if isinstance(answer, PolicyFaulted) else Reply(answered=answer)


def _end_with_asker() -> None:
    """End the whole process group when the parent ends; the kernel's death signal would reach only this process."""
    sys.stdin.buffer.read()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _wait_for_the_end() -> NoReturn:
    """Wait until the parent kills the process group, including anything that the policy left running."""
    while True:
        signal.pause()


def _described(entry: EntryPoint) -> External:
    origin = origin_of(entry)
    try:
        return declare(entry.load(), entry.name, origin)
    except UsageError as error:
        return External(name=entry.name, origin=origin, error=str(error))
    except (Exception, SystemExit) as error:
        return External(name=entry.name, origin=origin, error=f"it cannot be loaded: {describe(error)}")


def _ruled(entry: EntryPoint) -> RuleSource:
    origin = origin_of(entry)
    try:
        found = entry.load()
        items = msgspec.to_builtins(found() if callable(found) else found)
        if not isinstance(items, list | tuple):
            raise TypeError(f"found {type(items).__name__}, expected a list of rules")
        return RuleSource(name=entry.name, origin=origin, items=tuple(items))
    except (Exception, SystemExit) as error:
        return RuleSource(name=entry.name, origin=origin, error=f"they cannot be loaded: {describe(error)}")


if __name__ == "__main__":
    main(sys.argv[1:])
