"""etcd's requests and answers as typed values, reduced to the fields that ftcore uses; ``wire`` translates them.

``revision`` is the store's revision when the request was applied.
"""

from enum import IntEnum

import attrs


class Target(IntEnum):
    """The compared property of a key."""

    VERSION = 0
    CREATE = 1
    MOD = 2
    VALUE = 3
    LEASE = 4


class Relation(IntEnum):
    """Relation of a comparison."""

    EQUAL = 0
    GREATER = 1
    LESS = 2
    NOT_EQUAL = 3


class SortOrder(IntEnum):
    """Order of a range's keys. Values other than ``NONE`` (ascending) make the server read the whole range."""

    NONE = 0
    ASCENDING = 1
    DESCENDING = 2


@attrs.frozen(kw_only=True)
class KeyValue:
    """A key with its value and history."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


@attrs.frozen
class Compare:
    """A condition of a transaction.

    Args:
        key: the key; all numbers of a missing key are 0.
        target: the compared property.
        value: bytes for ``Target.VALUE``, else a number.
        relation: relation of the property to ``value``.
    """

    key: bytes
    target: Target
    value: int | bytes
    relation: Relation = Relation.EQUAL


@attrs.frozen
class Range:
    """Read a key, or the keys from ``key`` to ``end``, exclusive.

    Args:
        key: first key.
        end: empty: only ``key``.
        limit: most keys to return; 0: all.
        revision: read at this revision; 0: the current one.
        order: see ``SortOrder``.
        keys_only: leave the values out.
    """

    key: bytes
    end: bytes = b""
    limit: int = attrs.field(default=0, kw_only=True)
    revision: int = attrs.field(default=0, kw_only=True)
    order: SortOrder = attrs.field(default=SortOrder.NONE, kw_only=True)
    keys_only: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class Put:
    """Write a key; with ``lease``, it is deleted when the lease ends."""

    key: bytes
    value: bytes
    lease: int = 0


@attrs.frozen
class DeleteRange:
    """Delete a key, or the keys from ``key`` to ``end``, exclusive."""

    key: bytes
    end: bytes = b""


Op = Range | Put | DeleteRange


@attrs.frozen(kw_only=True)
class Txn:
    """Executes ``success`` if all of ``compare`` hold, else ``failure``; at most 128 operations per branch."""

    compare: tuple[Compare, ...] = ()
    success: tuple[Op, ...] = ()
    failure: tuple[Op, ...] = ()


@attrs.frozen(kw_only=True)
class RangeAnswer:
    """Contents of a range; ``more``: the limit was reached."""

    revision: int
    kvs: tuple[KeyValue, ...]
    more: bool

    @property
    def first(self) -> KeyValue | None:
        """The first key; None if there is none."""
        return self.kvs[0] if self.kvs else None


@attrs.frozen(kw_only=True)
class PutAnswer:
    """Answer to ``Put``."""

    revision: int


@attrs.frozen(kw_only=True)
class DeleteAnswer:
    """Answer to ``DeleteRange``: the number of deleted keys."""

    revision: int
    deleted: int


Answer = RangeAnswer | PutAnswer | DeleteAnswer


@attrs.frozen(kw_only=True)
class TxnAnswer:
    """The executed branch, and its answers in order."""

    revision: int
    succeeded: bool
    answers: tuple[Answer, ...]

    def range(self, index: int) -> RangeAnswer:
        """The answer of the operation at ``index``, which was a ``Range``."""
        answer = self.answers[index]
        assert isinstance(answer, RangeAnswer)
        return answer


@attrs.frozen(kw_only=True)
class Lease:
    """A granted or renewed lease: ``ttl_s`` seconds from the request; 0 if it does not exist."""

    id: int
    ttl_s: int


@attrs.frozen(kw_only=True)
class Status:
    """A member's status; sizes in bytes; ``quota``: 0 for servers before 3.6, which do not report it."""

    version: str
    db_size: int
    quota: int


@attrs.frozen(kw_only=True)
class WatchOpen:
    """Watch the changes of ``[key, end)`` from ``start_revision`` on (0: from now on)."""

    key: bytes
    end: bytes = b""
    start_revision: int = 0
    puts: bool = True
    deletes: bool = True


@attrs.frozen(kw_only=True)
class WatchEvent:
    """A key was written or deleted; after a deletion, only ``key`` and ``mod_revision`` of ``kv`` are meaningful."""

    deleted: bool
    kv: KeyValue


@attrs.frozen(kw_only=True)
class WatchBatch:
    """One message of a watch.

    Args:
        revision: the *store's* revision, which may be newer than the events: never resume from it.
        created: the server has created the watch.
        canceled: the watch has ended.
        compact_revision: if not 0, the start revision was compacted; this is the oldest revision left.
        reason: why the watch ended; may be empty.
        events: in order.
    """

    revision: int
    created: bool
    canceled: bool
    compact_revision: int
    reason: str
    events: tuple[WatchEvent, ...]


@attrs.frozen(kw_only=True)
class Login:
    """User and password, exchanged for a token."""

    user: str
    password: str = attrs.field(repr=False)


def prefix_end(prefix: bytes) -> bytes:
    """The ``end`` of the range of all keys with a prefix; the last byte of ``prefix`` must not be 255."""
    assert prefix and prefix[-1] < 255
    return prefix[:-1] + bytes([prefix[-1] + 1])
