"""Which places of a job need a pod. Pure.

A place is filled if none of its pods is live: at the start, after a crash, an eviction, a deletion. The master's order
to replace a node that the platform has already replaced does nothing, so both together make no second pod.

The identity of a filling is that of the pod that it follows. So it is the same for every master.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import attrs

from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.facts import end_of, is_live

JOB, ROLE, PLACE, EFFECT = (f"ftcore.dev/{name}" for name in ("job", "role", "place", "effect"))
"""Labels: the job, ``worker`` or ``master``, the place from 0, the digest of the effect's identity."""

IDENTITY, ATTEMPT = "ftcore.dev/effect-id", "ftcore.dev/attempt"
"""Annotations: the identity of the effect; how often this place was filled since its pod last lived long."""

BACKOFF_S: Final = (0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Pause before a place is filled, by the attempts before it, as kubelets pause before they restart a container."""


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
    for pod in sorted(pods, key=_age):
        place = place_of(pod)
        if place is not None:
            found.setdefault(place, []).append(pod)
    return found


def _age(pod: KubeObject) -> tuple[str, int, str]:
    """Order of creation; within the same second by attempt, which grows from pod to pod of a place."""
    metadata = pod["metadata"]
    return str(metadata.get("creationTimestamp") or ""), attempt_of(pod), str(metadata["name"])


def attempt_of(pod: KubeObject) -> int:
    """How often in a row the pod's place had been filled when it was created."""
    text = str((pod["metadata"].get("annotations") or {}).get(ATTEMPT, "0"))
    return int(text) if text.isdigit() else 0


def fillings(
    pods: Collection[KubeObject], replicas: int, gone: Mapping[int, KubeObject], proven: Collection[str] = ()
) -> list[Filling]:
    """The pods that are to be created.

    Args:
        pods: the job's worker pods.
        replicas: number of places.
        gone: by place, the newest pod whose object was removed.
        proven: names of pods that ran for long: what follows them is no repeated failure.
    """
    found, places = [], by_place(pods)
    for place in range(replicas):
        have = places.get(place, [])
        if any(is_live(pod) for pod in have):
            continue
        removed = gone.get(place)
        last = max([*have[-1:], *([removed] if removed is not None else [])], key=_age, default=None)
        if last is None:
            found.append(Filling(place=place, effect=f"start/{place}"))
            continue
        end = end_of(last)
        attempt = 1 if last["metadata"]["name"] in proven else attempt_of(last) + 1
        wait_s = max(BACKOFF_S[min(attempt - 1, len(BACKOFF_S) - 1)], end.settle_s if end is not None else 0.0)
        effect = f"fill/{place}/{last['metadata'].get('uid')}"
        found.append(Filling(place=place, effect=effect, attempt=attempt, wait_s=wait_s))
    return found


def surplus(pods: Iterable[KubeObject], replicas: int) -> list[KubeObject]:
    """Live pods of places that the job no longer has."""
    return [pod for place, have in by_place(pods).items() if place >= replicas for pod in have if is_live(pod)]


def outdated(pods: Iterable[KubeObject]) -> list[KubeObject]:
    """Ended pods that need not be kept: all but the newest few of each place."""
    ended = [[pod for pod in have if end_of(pod) is not None] for have in by_place(pods).values()]
    return [pod for have in ended for pod in have[:-KEPT]]
