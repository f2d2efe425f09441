"""Injected faults of the API: errors, slow answers, cut connections, answers lost after the write, old lists."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .request import Target
from .status import ApiError, Json, too_many

MESSAGES = {
    409: ("Conflict", "Operation cannot be fulfilled: the object has been modified; please apply your changes to the "
          "latest version and try again"),
    500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within requested timeout - context deadline exceeded"),
}  # fmt: skip


@dataclass(slots=True)
class Fault:
    """What is done to requests that match; ``times``: to how many of them (None: to all until it is removed).

    ``code``: answer with this status; 0: none. ``delay_s``: wait that long first. ``drop``: close the connection
    without an answer. ``after``: do it after the request was carried out, so that only the answer is lost.
    ``share``: to this share of the requests, drawn by chance. ``only_cached``: for ``stale``, lists with
    ``resourceVersion=0`` alone.
    """

    verbs: Sequence[str] = ()
    resources: Sequence[str] = ()
    namespace: str = ""
    name: str = ""
    times: int | None = 1
    share: float = 1.0
    code: int = 0
    message: str = ""
    retry_after_s: int = 1
    delay_s: float = 0.0
    drop: bool = False
    after: bool = False
    stale_revision: int = 0
    only_cached: bool = False
    id: int = 0
    hits: int = 0

    def fits(self, wanted: Target, sub: str) -> bool:
        """Whether it is meant for this request."""
        resource = wanted.resource.plural + (f"/{sub}" if sub else "")
        return (
            (not self.verbs or wanted.verb in self.verbs)
            and (not self.resources or resource in self.resources or wanted.resource.plural in self.resources)
            and self.namespace in ("", wanted.namespace)
            and self.name in ("", wanted.name)
        )

    def error(self) -> ApiError:
        """The error it answers with."""
        if self.code == 429:
            text = "The server has received too many requests and has asked us to try again later"
            return too_many(self.message or text, self.retry_after_s)
        reason, text = MESSAGES.get(self.code, ("", f"injected fault: status {self.code}"))
        headers = {"Retry-After": str(self.retry_after_s)} if self.code == 503 else {}
        return ApiError(self.code, reason, self.message or text, headers=headers)


class Faults:
    """The faults in effect, in the order they were added; one fault at most meets a request."""

    def __init__(self, seed: int | None = None) -> None:
        self._faults: dict[int, Fault] = {}
        self._next = 1
        self._chance = random.Random(seed)

    def add(self, **what: Any) -> int:
        """Add a fault (see ``Fault``); returns its id. Raises TypeError for an unknown field."""
        fault = Fault(**what)
        fault.id, self._next = self._next, self._next + 1
        self._faults[fault.id] = fault
        return fault.id

    def remove(self, number: int) -> int:
        """Remove a fault; returns how many requests it met."""
        fault = self._faults.pop(number, None)
        return 0 if fault is None else fault.hits

    def clear(self) -> None:
        """Remove all."""
        self._faults.clear()

    def all(self) -> list[Json]:
        """The faults in effect."""
        return [asdict(each) for each in self._faults.values()]

    def meet(self, wanted: Target, cached: bool = False) -> Fault | None:
        """The fault for a request, counted; None in most cases."""
        for fault in self._faults.values():
            if not fault.fits(wanted, wanted.sub) or (fault.times is not None and fault.hits >= fault.times):
                continue
            if fault.stale_revision and (wanted.verb != "list" or (fault.only_cached and not cached)):
                continue
            if fault.share < 1.0 and self._chance.random() >= fault.share:
                continue
            fault.hits += 1
            return fault
        return None
