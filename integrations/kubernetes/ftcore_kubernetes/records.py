"""The last pod of each place, in an annotation of the job's config map. Pure.

A pod's object may be removed while no master watches: with its machine, or by hand. Because of the record, the next pod
of the place gets another name (names are ftcore's node ids, and no name is used twice), the end of the node is
reported, and its machine is known.

An annotation has at most 256 KiB: entries are short lists, and names have no prefix.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.places import ATTEMPT, PLACE, age_of, attempt_of, by_place

PLACES: Final = "ftcore.dev/places"
"""Annotation of the config map."""


@attrs.frozen(kw_only=True)
class PlaceRecord:
    """The last pod of a place.

    Args:
        name: of the pod.
        born: time of its creation, as Kubernetes writes it.
        attempt: how often in a row the place had been filled when it was created.
        machine: its machine; empty: none yet.
    """

    name: str
    born: str
    attempt: int
    machine: str

    def as_pod(self, place: int) -> KubeObject:
        """The pod, as far as it is known."""
        return {
            "metadata": {
                "name": self.name,
                "creationTimestamp": self.born,
                "labels": {PLACE: str(place)},
                "annotations": {ATTEMPT: str(self.attempt)},
            },
            "spec": {"nodeName": self.machine},
        }


def _record_of(pod: KubeObject) -> PlaceRecord:
    metadata = pod["metadata"]
    return PlaceRecord(
        name=str(metadata["name"]),
        born=str(metadata.get("creationTimestamp") or ""),
        attempt=attempt_of(pod),
        machine=str((pod.get("spec") or {}).get("nodeName") or ""),
    )


def newest(records: Mapping[int, PlaceRecord], pods: Iterable[KubeObject]) -> dict[int, PlaceRecord]:
    """Records with what is known about pods; of several pods of a place, the newest one counts.

    Args:
        records: as they were.
        pods: the job's worker pods, and removed ones.
    """
    found = dict(records)
    for place, have in by_place(pods).items():
        before = records.get(place)
        if before is None or age_of(before.as_pod(place)) <= age_of(have[-1]):
            found[place] = _record_of(have[-1])
    return found


def names_in(records: Mapping[int, PlaceRecord]) -> dict[int, str]:
    """The name of each place's last pod."""
    return {place: each.name for place, each in records.items()}


def record_text(records: Mapping[int, PlaceRecord], job: str) -> str:
    """Records as the text of the annotation.

    Args:
        records: by place.
        job: the job's name, with which all names begin.
    """
    rows = {
        str(place): [each.name.removeprefix(f"{job}-"), each.born, each.attempt, each.machine]
        for place, each in sorted(records.items())
    }
    return json.dumps(rows, separators=(",", ":"))


def read_records(text: str, job: str) -> dict[int, PlaceRecord]:
    """The records in the annotation; what cannot be read is left out.

    Args:
        text: of the annotation; may be empty.
        job: the job's name.
    """
    try:
        rows: Any = json.loads(text or "{}")
    except ValueError:
        return {}
    found = {}
    for place, row in rows.items() if isinstance(rows, dict) else ():
        match row:
            case [str(name), str(born), int(attempt), str(machine)] if place.isdigit():
                found[int(place)] = PlaceRecord(name=f"{job}-{name}", born=born, attempt=attempt, machine=machine)
    return found
