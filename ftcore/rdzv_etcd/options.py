"""``--rdzv-endpoint`` and ``--rdzv-conf`` as this backend reads them. Pure; knows neither torch nor a store.

House rule: an option that has no effect is refused, not ignored; c10d's names are answered with ours.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from ftcore.errors import UsageError

OPTIONS: dict[str, str] = {
    "timeout": "seconds to wait for the first world; torchrun itself sets 900. A spare of a running job waits on",
    "join_window": "seconds that a world waits for more nodes than its minimum (default 30)",
    "node_id": "this node's name (default: the host's, with a number if a torchrun of the job has it already)",
    "node_rank": "this node's place among the nodes (default: its old one, or the lowest that is free)",
    "node_unit": "the world is a multiple of so many nodes (default 1)",
    "policy": "file with the chain of recovery policies; the same on all nodes",
    "archive": "directory that old events are moved to, seen by all nodes (default: FTCORE_ARCHIVE, else none)",
    "keep_events": "events that stay in the store where there is an archive (default 100000)",
    "snapshot_events": "events between two snapshots of the job's state (default 50000)",
    "log_level": "of ftcore itself: debug, info, warning (default) or error",
}
"""All keys of ``--rdzv-conf``, with their meaning."""

_INSTEAD = {
    "last_call_timeout": "join_window",
    "join_timeout": "timeout",
    "rank": "node_rank",
}
_NEEDLESS = {
    "is_host": "any node may lead",
    "store_type": "the round's store is always a TCPStore",
    "read_timeout": "the log's client has its own",
    "close_timeout": "an ended job is told in the log",
    "heartbeat_timeout": "time constants are the job's own",
    "keep_alive_interval": "time constants are the job's own",
    "keep_alive_max_attempt": "time constants are the job's own",
}
_KEYS = "join-window|node-id|node-rank|node-unit|policy|archive|keep-events|snapshot-events|log-level"
"""Flags of ftrun that are keys of ``--rdzv-conf`` here."""

LEVELS = ("debug", "info", "warning", "error")


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options with their types; those left out are left out.

    Args:
        config: as torchrun hands them over, texts or numbers.

    Raises:
        UsageError: one is unknown, or has a value that it cannot have.
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name not in OPTIONS:
            raise UsageError(f"--rdzv-conf: {name}: {_advice(name)}")
        if value is None or value == "":
            continue
        if name in ("timeout", "join_window"):
            found[name] = _number(name, value)
        elif name in ("node_rank", "node_unit", "keep_events", "snapshot_events"):
            found[name] = _whole(name, value, least=0 if name == "node_rank" else 1)
        elif name == "log_level" and value not in LEVELS:
            raise UsageError(f"--rdzv-conf: log_level={value}: expected one of {', '.join(LEVELS)}")
        else:
            found[name] = str(value)
    return found


def _advice(name: str) -> str:
    if name in _INSTEAD:
        return f"backend ftcore calls it {_INSTEAD[name]}"
    if name in _NEEDLESS:
        return f"has nothing to set with backend ftcore ({_NEEDLESS[name]}); leave it out"
    near = difflib.get_close_matches(name, OPTIONS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no option of backend ftcore; {hint}known are {', '.join(OPTIONS)}"


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1e9:
        raise UsageError(f"--rdzv-conf: {name}={value}: expected a number of seconds above 0")
    return number


def _whole(name: str, value: Any, least: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < least:
        raise UsageError(f"--rdzv-conf: {name}={value}: expected a whole number, at least {least}")
    return number


def in_torchruns_words(text: str, store: str) -> str:
    """A message in which ftrun's flags stand, for a user who typed torchrun's.

    Args:
        text: the message.
        store: URL of the log store, with which ``ftctl`` finds the job.
    """
    text = re.sub(rf"(?<![\w-])--({_KEYS})(?![\w-])", lambda flag: _key(flag[1]), text)
    text = re.sub(r"(?<!ftctl )--store\b", "--rdzv-endpoint", text).replace("(--job)", "(--rdzv-id)")
    text = re.sub(r"(?<![\w-])(--node-sizes|--order-by|--node-labels)\b", r"ftrun's \1", text)
    text = re.sub(r"\bevery ftrun\b", "every torchrun", text)
    return re.sub(r"\bftctl (?=[a-z])", f"ftctl --store {store} ", text)


def _key(flag: str) -> str:
    return f"--rdzv-conf {flag.replace('-', '_')}"


def store_url(endpoint: str, fallback: str = "") -> str:
    """The URL of the log store.

    Args:
        endpoint: ``HOST:PORT,HOST:PORT`` of etcd, as torchrun's users write it, or a URL.
        fallback: used where the endpoint is empty (``FTCORE_STORE``).

    Raises:
        UsageError: there is none, or it cannot be shared by the nodes of a job.
    """
    endpoint = endpoint.strip() or fallback
    if not endpoint:
        raise UsageError(
            "--rdzv-endpoint: found nothing; expected the members of an etcd cluster (etcd1:2379,etcd2:2379), "
            "or a URL: etcd://HOST:PORT/PREFIX, or sqlite:///DIR for torchruns on one machine"
        )
    if ":/" not in endpoint and not endpoint.startswith(("sqlite:", "file:", "memory:")):
        return f"etcd://{endpoint}"
    scheme = endpoint.partition(":")[0]
    if scheme not in ("etcd", "sqlite"):
        raise UsageError(f"--rdzv-endpoint: {endpoint}: expected etcd: or, on one machine, sqlite:")
    return endpoint
