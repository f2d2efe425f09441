"""``--rdzv-endpoint`` and ``--rdzv-conf`` of this backend. Pure; imports neither torch nor a store.

House rule: an option without effect is refused, not ignored; for an option of c10d, the message names the equivalent.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from ftcore.errors import UsageError

OPTIONS: dict[str, str] = {
    "timeout": "seconds to wait for the first world; torchrun sets 900. A spare of a running job waits without limit",
    "join_window": "seconds that a world waits for more nodes than its minimum (default 30)",
    "node_id": "this node's name (default: the host name, with a number if another torchrun of the job uses it)",
    "node_rank": "this node's position among the nodes (default: its previous one, or the lowest free one)",
    "node_unit": "the number of nodes is a multiple of this (default 1)",
    "policy": "policy file: the chain of recovery policies; the same on all nodes",
    "archive": "directory to which old events are moved, shared by all nodes (default: FTCORE_ARCHIVE, else none)",
    "keep_events": "number of events kept in the store if there is an archive (default 100000)",
    "snapshot_events": "number of events between two snapshots of the job's state (default 20000)",
    "log_level": "log level of ftcore's own messages: debug, info, warning (default) or error",
}
"""All keys of ``--rdzv-conf`` with their meaning."""

_INSTEAD = {
    "last_call_timeout": "join_window",
    "join_timeout": "timeout",
    "rank": "node_rank",
}
_NEEDLESS = {
    "is_host": "any node may run the master",
    "store_type": "the round's store is always a TCPStore",
    "read_timeout": "the log's client has its own timeout",
    "close_timeout": "the end of the job is recorded in the event log",
    "heartbeat_timeout": "the job has its own time constants",
    "keep_alive_interval": "the job has its own time constants",
    "keep_alive_max_attempt": "the job has its own time constants",
}
_KEYS = "join-window|node-id|node-rank|node-unit|policy|archive|keep-events|snapshot-events|log-level"
"""Flags of ftrun that are keys of ``--rdzv-conf`` here."""

LEVELS = ("debug", "info", "warning", "error")


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, converted to their types.

    Args:
        config: options from torchrun, as texts or numbers.

    Raises:
        UsageError: an option is unknown or has an invalid value.
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
        return f"has no effect with backend ftcore ({_NEEDLESS[name]}); remove it"
    near = difflib.get_close_matches(name, OPTIONS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"not an option of backend ftcore; {hint}expected one of {', '.join(OPTIONS)}"


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


def with_torchrun_flags(text: str, store: str) -> str:
    """Replace ftrun's flags in a message by torchrun's.

    Args:
        text: the message.
        store: URL of the log store, added to ``ftctl`` commands.
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
        endpoint: ``HOST:PORT,HOST:PORT`` of etcd, as in torchrun, or a URL.
        fallback: used if the endpoint is empty (``FTCORE_STORE``).

    Raises:
        UsageError: there is none, or nodes of a job cannot share it.
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
