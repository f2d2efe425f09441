"""The arguments of ``ftctl replay`` and ``ftctl bisect``."""

from collections.abc import Callable
from typing import Any

from ftcore.cli.ctl_types import BOUND_HELP, bound

CHECK_NAMES = (
    "facts-in-order",
    "terms-rise",
    "decisions-follow-facts",
    "one-incident",
    "rounds-rise",
    "results-follow-orders",
    "decisions-agree",
)
"""The keys of ``replay.checks.CHECKS``, which is imported only by the command itself."""


def add_replay(commands: Any, reading: Callable[..., Any]) -> None:
    """Add the commands.

    Args:
        commands: the subparsers.
        reading: adds a command that reads a log.
    """
    replay = reading(
        commands,
        "replay",
        "Rebuild a job's state at a point of its log, show what changed between two points, step through the events, "
        "or verify that the facts lead to the recorded decisions.",
        "ftctl replay\nftctl replay --at 120 --format json | jq .folded.membership.nodes\nftctl replay --at 15m\n"
        "ftctl replay --diff 100 120\nftctl replay --interactive\nftctl replay --verify",
    )
    replay.add_argument(
        "--at",
        type=bound,
        metavar="SEQ|TIME|AGO",
        help=f"state after this event, or the last one until then: {BOUND_HELP}; default: the last event. "
        "--interactive begins there; not with --diff",
    )
    how = replay.add_mutually_exclusive_group()
    how.add_argument(
        "--verify", action="store_true", help="decide again from the facts and compare; exit code 1 on a difference"
    )
    how.add_argument(
        "--diff", nargs=2, type=bound, metavar=("A", "B"), help="fields that differ between two points, as --at"
    )
    how.add_argument(
        "--interactive", action="store_true", help="step through the events; commands are read from standard input"
    )
    _add_bisect(commands, reading)


def _add_bisect(commands: Any, reading: Callable[..., Any]) -> None:
    find = reading(
        commands,
        "bisect",
        "Find the first event at which a property of the log fails, and whether it holds again later. The log is read "
        "once: binary search would be wrong for properties that come and go. Exit code 1 if it fails.",
        "ftctl bisect --expr 'training.step is None or training.step < 1000'\n"
        "ftctl bisect --expr 'len(membership.nodes) >= 2'\n"
        "ftctl bisect --expr 'not any(n.phase == \"lost\" for n in membership.nodes)' --format json\n"
        "ftctl bisect --check decisions-agree",
    )
    which = find.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--expr",
        metavar="EXPR",
        help="a property of the state, whose fields `ftctl replay` shows, and of `event`: comparisons, and/or/not, "
        "numbers, strings, and len, any, all, min, max, sum; a mapping is iterated by its values",
    )
    which.add_argument(
        "--check",
        choices=CHECK_NAMES,
        metavar="NAME",
        help=f"a property of every log that a master wrote: {', '.join(CHECK_NAMES)}",
    )
