"""etcd's requests and answers as plain typed values.

House rules: these classes say nothing of gRPC or protobuf (``wire`` translates them) and carry only what ftcore uses.
``revision`` is the store's revision when the request was applied.
"""

from enum import IntEnum

import attrs


class Target(IntEnum):
    """What of a key a comparison looks at."""

    VERSION = 0
    CREATE = 1
    MOD = 2
    VALUE = 3
    LEASE = 4


class Relation(IntEnum):
    """How a comparison holds."""

    EQUAL = 0
    GREATER = 1
    LESS = 2
    NOT_EQUAL = 3


class Order(IntEnum):
    """Order of a range's keys. Anything but ``NONE`` (which is ascending) makes the server read the whole range."""

    NONE = 0
    ASCENDING = 1
    DESCENDING = 2


@attrs.frozen(kw_only=True)
class KeyValue:
    """A key with its value and history; ``create_revision`` 0 would mean that it does not exist."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


@attrs.frozen
class Compare:
    """A guard of a transaction: ``target`` of ``key`` stands in ``relation`` to ``value``.

    Args:
        key: the key; one that does not exist has 0 for all its numbers.
        target: what is compared.
        value: bytes for ``Target.VALUE``, else a number.
        relation: how.
    """

    key: bytes
    target: Target
    value: int | bytes
    relation: Relation = Relation.EQUAL


@attrs.frozen
class Range:
    """Read a key, or the keys from ``key`` up to, not including, ``end``.

    Args:
        key: first key.
        end: empty: only ``key``.
        limit: at most so many keys; 0: all.
        revision: as of this revision; 0: now.
        order: see ``Order``.
        keys_only: leave the values out.
    """

    key: bytes
    end: bytes = b""
    limit: int = attrs.field(default=0, kw_only=True)
    revision: int = attrs.field(default=0, kw_only=True)
    order: Order = attrs.field(default=Order.NONE, kw_only=True)
    keys_only: bool = attrs.field(default=False, kw_only=True)


@attrs.frozen
class Put:
    """Write a key; with ``lease`` it is deleted when the lease ends."""

    key: bytes
    value: bytes
    lease: int = 0


@attrs.frozen
class DeleteRange:
    """Delete a key, or the keys from ``key`` up to, not including, ``end``."""

    key: bytes
    end: bytes = b""


Op = Range | Put | DeleteRange


@attrs.frozen(kw_only=True)
class Txn:
    """If all of ``compare`` hold do ``success``, else ``failure``; one revision, at most 128 operations a branch."""

    compare: tuple[Compare, ...] = ()
    success: tuple[Op, ...] = ()
    failure: tuple[Op, ...] = ()


@attrs.frozen(kw_only=True)
class RangeAnswer:
    """What a range holds; ``more`` if the limit cut it off, ``count`` without regard to the limit."""

    revision: int
    kvs: tuple[KeyValue, ...]
    more: bool
    count: int

    @property
    def first(self) -> KeyValue | None:
        """The first key, or None if there is none."""
        return self.kvs[0] if self.kvs else None


@attrs.frozen(kw_only=True)
class PutAnswer:
    """A key was written."""

    revision: int


@attrs.frozen(kw_only=True)
class DeleteAnswer:
    """So many keys were deleted."""

    revision: int
    deleted: int


Answer = RangeAnswer | PutAnswer | DeleteAnswer


@attrs.frozen(kw_only=True)
class TxnAnswer:
    """Which branch ran, and its answers in order."""

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
    """A lease as granted or renewed: ``ttl_s`` seconds from the time of the request; 0 if it does not exist."""

    id: int
    ttl_s: int


@attrs.frozen(kw_only=True)
class Status:
    """One member's state; sizes in bytes, ``quota`` 0 where the server (before 3.6) does not tell."""

    version: str
    member: int
    leader: int
    db_size: int
    db_size_in_use: int
    quota: int
    errors: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Alarm:
    """An alarm that a member raised: ``NOSPACE``, ``CORRUPT`` or a number that is not known here."""

    member: int
    kind: str


@attrs.frozen(kw_only=True)
class WatchOpen:
    """Ask for the changes of ``[key, end)`` from ``start_revision`` on (0: from now on)."""

    key: bytes
    end: bytes = b""
    start_revision: int = 0
    puts: bool = True
    deletes: bool = True


@attrs.frozen(kw_only=True)
class WatchEvent:
    """A key was written, or deleted (then only ``key`` and ``mod_revision`` of ``kv`` mean anything)."""

    deleted: bool
    kv: KeyValue


@attrs.frozen(kw_only=True)
class WatchBatch:
    """What the server sent at once.

    Args:
        revision: the *store's* revision, which may be newer than the events: never resume from it.
        created: the server has set up the watch.
        canceled: the watch is over.
        compact_revision: not 0: the start revision is gone, this is the oldest one that is left.
        reason: why it is over, if told.
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
    """A user and the password, exchanged for a token."""

    user: str
    password: str = attrs.field(repr=False)


def prefix_end(prefix: bytes) -> bytes:
    """The ``end`` of the range of all keys that start with ``prefix``, whose last byte must not be 255."""
    assert prefix and prefix[-1] < 255
    return prefix[:-1] + bytes([prefix[-1] + 1])
