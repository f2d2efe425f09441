"""Kubernetes: ``kubectl get events -o json``, ``kubectl get pods -o json`` and ``kubectl logs --timestamps``.

A pod is a node. Events show its end from outside (evicted, preempted, node not ready) and the end of its Job; the
states of its containers show exit codes. The log of a pod is a file that is named after it: ``POD.log``. Pure.
"""

from typing import Any

import attrs
import msgspec

from ftcore.importing.model import UNKNOWN, Act, Collected, FileReading, Sighting, SourceTime
from ftcore.importing.stamps import read_time

_OUTSIDE = {
    "Evicted": Act.OBSERVED,
    "Preempted": Act.OBSERVED,
    "Preempting": Act.OBSERVED,
    "TaintManagerEviction": Act.OBSERVED,
    "OOMKilling": Act.OBSERVED,
    "SystemOOM": Act.OBSERVED,
    "NodeNotReady": Act.LOST,
    "NodeLost": Act.LOST,
    "Started": Act.STARTED,
}
"""What a reason of an event shows of a pod."""
_ENDS = {
    "BackoffLimitExceeded": ("failed", "the Job reached its limit of restarts"),
    "DeadlineExceeded": ("failed", "the Job exceeded its wall-clock time: DeadlineExceeded"),
    "Completed": ("succeeded", "the Job completed"),
}
"""Reasons of events of a Job that show its end."""
_SHELL = 128


def is_events(head: bytes) -> bool:
    """Whether a file begins like a list of Kubernetes objects."""
    start = head.lstrip()[:2000]
    return start.startswith(b"{") and b'"apiVersion"' in start and (b'"items"' in start or b'"kind"' in start)


def pod_of(name: str) -> str:
    """The pod whose log a file is, by its name."""
    base = name.rpartition("/")[2]
    for end in (".gz", ".txt", ".log", ".previous", "-previous"):
        base = base.removesuffix(end)
    return base[:253]


def read_events(data: bytes, reading: FileReading, collected: Collected) -> None:
    """Read a list of events or pods.

    Args:
        data: contents of the file.
        reading: of the file; updated.
        collected: what they show is added to it.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reading.kind, reading.why = "", f"not JSON, or cut off ({error})"
        return
    items = document.get("items", [document]) if isinstance(document, dict) else []
    reading.lines = len(items) if isinstance(items, list) else 0
    pods: set[str] = set()
    for number, item in enumerate(items if isinstance(items, list) else [], 1):
        if not isinstance(item, dict):
            continue
        place = f"{reading.name}:{number}"
        if item.get("kind") == "Pod":
            found = _pod(item, place, pods)
        else:
            found = _event(item, place, pods)
        reading.understood += bool(found)
        collected.sightings += found
    _name_logs(collected, pods)


def _text(item: Any, *path: str) -> str:
    for key in path:
        item = item.get(key) if isinstance(item, dict) else None
    return item if isinstance(item, str) else ""


def _event(item: dict[str, Any], place: str, pods: set[str]) -> list[Sighting]:
    reason, message = _text(item, "reason"), _text(item, "message")
    kind, name = _text(item, "involvedObject", "kind"), _text(item, "involvedObject", "name")
    when = _time(item, "eventTime", "lastTimestamp", "firstTimestamp")
    if kind == "Job" and reason in _ENDS:
        outcome, text = _ENDS[reason]
        ended = Sighting(act=Act.ENDED, place=place, when=when, outcome=outcome, text=text, source="platform")
        return [ended]
    if reason not in _OUTSIDE or kind not in ("Pod", "Node"):
        return []
    host = name if kind == "Pod" else ""
    if kind == "Pod":
        pods.add(name)
    elif _OUTSIDE[reason] is not Act.OBSERVED:
        return []  # which pods it hit is in their own events
    text = f"{reason}: {message}"[:4000]
    return [Sighting(act=_OUTSIDE[reason], place=place, when=when, host=host, text=text, source="platform")]


def _time(item: dict[str, Any], *names: str) -> SourceTime:
    for name in names:
        moment = read_time(_text(item, name))
        if moment is not None:
            return moment
    return UNKNOWN


def _pod(item: dict[str, Any], place: str, pods: set[str]) -> list[Sighting]:
    name = _text(item, "metadata", "name")
    status = item.get("status")
    if not name or not isinstance(status, dict):
        return []
    pods.add(name)
    found: list[Sighting] = []
    containers = status.get("containerStatuses")
    for container in containers if isinstance(containers, list) else []:
        for key in ("lastState", "state"):
            state = container.get(key) if isinstance(container, dict) else None
            ended = state.get("terminated") if isinstance(state, dict) else None
            if isinstance(ended, dict):
                found += _container(ended, name, place)
    if _text(status, "reason") in ("Evicted", "Preempting", "NodeLost", "Shutdown", "Terminated"):
        text = f"{_text(status, 'reason')}: {_text(status, 'message')}"
        found.append(Sighting(act=Act.OBSERVED, place=place, host=name, text=text[:4000], source="platform"))
    return found


def _container(ended: dict[str, Any], pod: str, place: str) -> list[Sighting]:
    code, reason = ended.get("exitCode"), _text(ended, "reason")
    if not isinstance(code, int):
        return []
    began = Sighting(act=Act.STARTED, place=place, when=_time(ended, "startedAt"), host=pod)
    when = _time(ended, "finishedAt")
    if code == 0:
        return [began]
    signal = code - _SHELL if _SHELL < code <= _SHELL + 64 else 0
    text = f"container terminated: {reason}, exit code {code}" if reason not in ("", "Error") else ""
    failed = Sighting(
        act=Act.FAILED if not text else Act.OBSERVED,
        place=place,
        when=when,
        host=pod,
        local_rank=0,
        code=-signal if signal else code,
        text=text,
        source="platform" if text else "log",
    )
    return [began, failed]


def _name_logs(collected: Collected, pods: set[str]) -> None:
    """Give log files the pod that their name contains: ``kubectl logs`` does not write the name itself."""
    names = sorted(pods, key=len, reverse=True)

    def pod(host: str) -> str:
        return host if host in pods else next((name for name in names if name in host), host)

    collected.sightings = [attrs.evolve(one, host=pod(one.host)) for one in collected.sightings]
