"""Which places of a job need a pod. Pure.

A place is filled if none of its pods is live: at the start, after a crash, an eviction, a deletion. The master's order
to replace a node that the platform has already replaced does nothing, so both together make no second pod.

The identity of a filling, and with it the name of the new pod, follows from the place and the pod that it replaces. So
it is the same for every master, and for a master's order to replace that pod: the server refuses the second creation,
because names are unique. Names are ftcore's node ids, and no name is used twice.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import attrs

from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.facts import end_of, is_live, ran_s

JOB, ROLE, PLACE, EFFECT = (f"ftcore.dev/{name}" for name in ("job", "role", "place", "effect"))
"""Labels: the job, ``worker`` or ``master``, the place from 0, the digest of the effect's identity."""

IDENTITY, ATTEMPT = "ftcore.dev/effect-id", "ftcore.dev/attempt"
"""Annotations: the identity of the effect; how often this place was filled since its pod last lived long."""

BACKOFF_S: Final = (0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Pause before a place is filled, by the attempts before it, as kubelets pause before they restart a container."""

PROVEN_S: Final = 120.0
"""After a run of this many seconds, the end of a pod is no repeated failure, and its place is filled at once."""

KEPT: Final = 5
"""Ended pods of a place that are kept, for their output."""


@attrs.frozen(kw_only=True)
class Filling:
    """A pod to create.

    Args:
        place: its place.
        effect: identity: it is created once.
        attempt: how often in a row the place was filled by now.
        wait_s: pause before it.
    """

    place: int
    effect: str
    attempt: int = 0
    wait_s: float = 0.0


def place_of(pod: KubeObject) -> int | None:
    """The place of a worker pod; None: it has none of its own."""
    text = str((pod["metadata"].get("labels") or {}).get(PLACE, ""))
    return int(text) if text.isdigit() else None


def by_place(pods: Iterable[KubeObject]) -> dict[int, list[KubeObject]]:
    """Pods by place, the oldest first."""
    found: dict[int, list[KubeObject]] = {}
    for pod in sorted(pods, key=age_of):
        place = place_of(pod)
        if place is not None:
            found.setdefault(place, []).append(pod)
    return found


def age_of(pod: KubeObject) -> tuple[str, int, str]:
    """Order of creation; within the same second by attempt, which grows from pod to pod of a place."""
    metadata = pod["metadata"]
    return str(metadata.get("creationTimestamp") or ""), attempt_of(pod), str(metadata["name"])


def attempt_of(pod: KubeObject) -> int:
    """How often in a row the pod's place had been filled when it was created."""
    text = str((pod["metadata"].get("annotations") or {}).get(ATTEMPT, "0"))
    return int(text) if text.isdigit() else 0


def next_attempt(pod: KubeObject) -> int:
    """The attempt of the pod that follows this one."""
    return 1 if ran_s(pod) >= PROVEN_S else attempt_of(pod) + 1


def successor(place: int, name: str) -> str:
    """The identity of the pod that follows another one.

    Args:
        place: the place.
        name: the pod that it replaces.
    """
    return f"fill/{place}/{name}"


def fillings(pods: Collection[KubeObject], replicas: int, removed: Mapping[int, KubeObject]) -> list[Filling]:
    """The pods that are to be created.

    Args:
        pods: the job's worker pods.
        replicas: number of places.
        removed: by place, the newest pod whose object was removed.
    """
    found, places = [], by_place(pods)
    for place in range(replicas):
        have = places.get(place, [])
        if any(is_live(pod) for pod in have):
            continue
        missing = removed.get(place)
        last = max([*have[-1:], *([missing] if missing is not None else [])], key=age_of, default=None)
        if last is None:
            found.append(Filling(place=place, effect=f"start/{place}"))
            continue
        end = end_of(last)
        attempt = next_attempt(last)
        wait_s = max(BACKOFF_S[min(attempt - 1, len(BACKOFF_S) - 1)], end.settle_s if end is not None else 0.0)
        effect = successor(place, str(last["metadata"]["name"]))
        found.append(Filling(place=place, effect=effect, attempt=attempt, wait_s=wait_s))
    return found


def surplus(pods: Iterable[KubeObject], replicas: int) -> list[KubeObject]:
    """Live pods of places that the job no longer has."""
    return [pod for place, have in by_place(pods).items() if place >= replicas for pod in have if is_live(pod)]


def outdated(pods: Iterable[KubeObject]) -> list[KubeObject]:
    """Ended pods that need not be kept: all but the newest few of each place."""
    ended = [[pod for pod in have if end_of(pod) is not None] for have in by_place(pods).values()]
    return [pod for have in ended for pod in have[:-KEPT]]
