"""Encoding of typed values as protobuf messages, and the table of etcd's methods.

The only module that handles protobuf messages, which are typed as ``Any``.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

from ftcore.etcd3.messages import (
    Answer,
    Compare,
    DeleteAnswer,
    DeleteRange,
    KeyValue,
    Lease,
    Login,
    Op,
    Put,
    PutAnswer,
    Range,
    RangeAnswer,
    Status,
    Target,
    Txn,
    TxnAnswer,
    WatchBatch,
    WatchEvent,
    WatchOpen,
)
from ftcore.etcd3.schema import message

Q = TypeVar("Q")
A = TypeVar("A")

_ALARMS = {1: "NOSPACE", 2: "CORRUPT"}
_UNION = {
    Target.VERSION: "version",
    Target.CREATE: "create_revision",
    Target.MOD: "mod_revision",
    Target.VALUE: "value",
    Target.LEASE: "lease",
}
_NO_PUT, _NO_DELETE = 0, 1


@attrs.frozen
class Method(Generic[Q, A]):
    """One method of the API: its path, encoder and decoder."""

    path: str
    encode: Callable[[Q], bytes]
    decode: Callable[[bytes], A]


def _range(request: Range) -> Any:
    return message("RangeRequest")(
        key=request.key,
        range_end=request.end,
        limit=request.limit,
        revision=request.revision,
        sort_order=request.order,
        keys_only=request.keys_only,
    )


def _put(request: Put) -> Any:
    return message("PutRequest")(key=request.key, value=request.value, lease=request.lease)


def _delete(request: DeleteRange) -> Any:
    return message("DeleteRangeRequest")(key=request.key, range_end=request.end)


def _op(request: Op) -> Any:
    if isinstance(request, Range):
        return message("RequestOp")(request_range=_range(request))
    if isinstance(request, Put):
        return message("RequestOp")(request_put=_put(request))
    return message("RequestOp")(request_delete_range=_delete(request))


def _compare(compare: Compare) -> Any:
    fields = {_UNION[compare.target]: compare.value}
    return message("Compare")(key=compare.key, target=compare.target, result=compare.relation, **fields)


def _txn(request: Txn) -> Any:
    return message("TxnRequest")(
        compare=[_compare(compare) for compare in request.compare],
        success=[_op(op) for op in request.success],
        failure=[_op(op) for op in request.failure],
    )


def _kv(kv: Any) -> KeyValue:
    return KeyValue(
        key=kv.key,
        value=kv.value,
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        lease=kv.lease,
    )


def _range_answer(answer: Any, revision: int) -> RangeAnswer:
    return RangeAnswer(revision=revision, kvs=tuple(map(_kv, answer.kvs)), more=answer.more)


def _op_answer(answer: Any, revision: int) -> Answer:
    kind = answer.WhichOneof("response")
    if kind == "response_range":
        return _range_answer(answer.response_range, revision)
    if kind == "response_put":
        return PutAnswer(revision=revision)
    return DeleteAnswer(revision=revision, deleted=answer.response_delete_range.deleted)


def _txn_answer(answer: Any) -> TxnAnswer:
    revision = answer.header.revision
    answers = tuple(_op_answer(response, revision) for response in answer.responses)
    return TxnAnswer(revision=revision, succeeded=answer.succeeded, answers=answers)


def _watch(request: WatchOpen) -> Any:
    filters = [] if request.puts else [_NO_PUT]
    filters += [] if request.deletes else [_NO_DELETE]
    # Without `fragment`: the server needs quadratic time to split a large answer.
    create = message("WatchCreateRequest")(
        key=request.key, range_end=request.end, start_revision=request.start_revision, filters=filters
    )
    return message("WatchRequest")(create_request=create)


def _watch_batch(answer: Any) -> WatchBatch:
    return WatchBatch(
        revision=answer.header.revision,
        created=answer.created,
        canceled=answer.canceled,
        compact_revision=answer.compact_revision,
        reason=answer.cancel_reason,
        events=tuple(WatchEvent(deleted=event.type == 1, kv=_kv(event.kv)) for event in answer.events),
    )


def _lease(answer: Any) -> Lease:
    return Lease(id=answer.ID, ttl_s=answer.TTL)


def _status(answer: Any) -> Status:
    return Status(
        version=answer.version,
        db_size=answer.dbSize,
        quota=answer.dbSizeQuota,
    )


def _alarms(answer: Any) -> tuple[str, ...]:
    return tuple(_ALARMS.get(alarm.alarm, str(alarm.alarm)) for alarm in answer.alarms)


def _method(path: str, encode: Callable[[Q], Any], answer: str, decode: Callable[[Any], A]) -> Method[Q, A]:
    factory = message(answer)
    return Method(
        "/etcdserverpb." + path,
        lambda request: bytes(encode(request).SerializeToString()),
        lambda body: decode(factory.FromString(body)),
    )


def _compaction(revision: int) -> Any:
    return message("CompactionRequest")(revision=revision, physical=True)


RANGE: Method[Range, RangeAnswer] = _method(
    "KV/Range", _range, "RangeResponse", lambda answer: _range_answer(answer, answer.header.revision)
)
PUT: Method[Put, PutAnswer] = _method(
    "KV/Put", _put, "PutResponse", lambda answer: PutAnswer(revision=answer.header.revision)
)
DELETE: Method[DeleteRange, DeleteAnswer] = _method(
    "KV/DeleteRange",
    _delete,
    "DeleteRangeResponse",
    lambda answer: DeleteAnswer(revision=answer.header.revision, deleted=answer.deleted),
)
TXN: Method[Txn, TxnAnswer] = _method("KV/Txn", _txn, "TxnResponse", _txn_answer)
COMPACT: Method[int, None] = _method("KV/Compact", _compaction, "CompactionResponse", lambda _: None)
WATCH: Method[WatchOpen, WatchBatch] = _method("Watch/Watch", _watch, "WatchResponse", _watch_batch)
GRANT: Method[int, Lease] = _method(
    "Lease/LeaseGrant", lambda ttl_s: message("LeaseGrantRequest")(TTL=ttl_s), "LeaseGrantResponse", _lease
)
REVOKE: Method[int, None] = _method(
    "Lease/LeaseRevoke", lambda lease: message("LeaseRevokeRequest")(ID=lease), "LeaseRevokeResponse", lambda _: None
)
KEEP_ALIVE: Method[int, Lease] = _method(
    "Lease/LeaseKeepAlive", lambda lease: message("LeaseKeepAliveRequest")(ID=lease), "LeaseKeepAliveResponse", _lease
)
STATUS: Method[None, Status] = _method(
    "Maintenance/Status", lambda _: message("StatusRequest")(), "StatusResponse", _status
)
ALARMS: Method[None, tuple[str, ...]] = _method(
    "Maintenance/Alarm", lambda _: message("AlarmRequest")(), "AlarmResponse", _alarms
)
LOGIN: Method[Login, str] = _method(
    "Auth/Authenticate",
    lambda login: message("AuthenticateRequest")(name=login.user, password=login.password),
    "AuthenticateResponse",
    lambda answer: str(answer.token),
)
