"""Codec of events: JSON, at rest and on the wire.

House rules: encoding is canonical (fields in the order of their declaration, defaults of the envelope left out), so
equal events have equal bytes and a digest of the bytes is a digest of the event. Decoding accepts types and versions
newer than this code: their payload becomes ``Unknown``, and the fold decides whether the event may be ignored.
"""

import hashlib
from typing import Any

import msgspec

from ftcore.errors import LogCorrupt
from ftcore.events.envelope import At, Event, EventId, Fact, Unknown
from ftcore.events.registry import EventType, Kind, lookup, type_of
from ftcore.ids import IncidentId, Nanoseconds, Seq, Term

DIGEST_BYTES = 16
"""128 bits: enough to distinguish logs and to detect damage; it is not a signature."""

GENESIS = bytes(DIGEST_BYTES)
"""The digest before the first event."""

_encoder = msgspec.json.Encoder()


class _EventRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event with its data not yet decoded; the fields are those of ``Event``, in the same order."""

    seq: Seq
    id: EventId
    time: Nanoseconds
    type: str
    kind: Kind
    source: str
    term: Term
    v: int = 1
    at: At | None = None
    cause: Seq | None = None
    incident: IncidentId | None = None
    ignorable: bool = False
    data: msgspec.Raw = msgspec.Raw(b"null")


class _FactRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact on the wire: its type's name, and its data not yet decoded."""

    id: EventId
    type: str
    v: int = 1
    at: At | None = None
    cause: int | None = None
    data: msgspec.Raw = msgspec.Raw(b"null")


_record_decoder = msgspec.json.Decoder(_EventRecord)
_fact_decoder = msgspec.json.Decoder(_FactRecord)
_newest_decoders: dict[tuple[str, int], msgspec.json.Decoder[Any]] = {}
"""By type and newest version: nearly every event of a log has these."""


def encode(event: Event) -> bytes:
    """Encode an event as canonical JSON: one line, without a newline."""
    if type(event.data) is Unknown:
        return _encoder.encode(msgspec.structs.replace(event, data=event.data.fields))
    return _encoder.encode(event)


def decode(body: bytes | memoryview) -> Event:
    """Decode an event from a line of JSON.

    Raises:
        LogCorrupt: the bytes are not an event, or the data do not match their type and version.
    """
    try:
        record = _record_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise LogCorrupt(f"not an event: {error}: {bytes(body[:120])!r}") from error
    version = record.v
    try:
        payload = _newest_decoders.get((record.type, version))
        if payload is not None:
            data = payload.decode(record.data)
        else:
            data = _decode_payload(record.type, version, record.data)
            version = version if type(data) is Unknown else type_of(data).version
    except msgspec.MsgspecError as error:
        raise LogCorrupt(f"event {record.seq} ({record.type} v{record.v}): {error}") from error
    return Event(
        seq=record.seq,
        id=record.id,
        time=record.time,
        type=record.type,
        kind=record.kind,
        source=record.source,
        term=record.term,
        v=version,
        at=record.at,
        cause=record.cause,
        incident=record.incident,
        ignorable=record.ignorable,
        data=data,
    )


def encode_fact(fact: Fact) -> bytes:
    """Encode a fact as JSON for the wire and the outbox: one line, without a newline."""
    known = type_of(fact.data)
    record = _FactRecord(
        id=fact.id,
        type=known.name,
        v=known.version,
        at=fact.at,
        cause=fact.cause,
        data=msgspec.Raw(_encoder.encode(fact.data)),
    )
    return _encoder.encode(record)


def decode_fact(body: bytes) -> Fact:
    """Decode a fact from a line of JSON.

    Raises:
        LogCorrupt: the bytes are not a fact, or this ftcore does not know its type or version.
    """
    try:
        record = _fact_decoder.decode(body)
        data = _decode_payload(record.type, record.v, record.data)
    except msgspec.MsgspecError as error:
        raise LogCorrupt(f"not a fact: {error}: {bytes(body[:120])!r}") from error
    if type(data) is Unknown or type_of(data).kind is not Kind.FACT:
        raise LogCorrupt(f"{record.type} v{record.v} is not a fact that this ftcore knows")
    cause = None if record.cause is None else Seq(record.cause)
    return Fact(id=record.id, data=data, at=record.at, cause=cause)


def chain(previous: bytes, body: bytes) -> bytes:
    """Return the digest of a log after appending ``body`` to a log with the digest ``previous``: blake2b, 128 bits."""
    return hashlib.blake2b(previous + body, digest_size=DIGEST_BYTES).digest()


def digest_of(body: bytes) -> str:
    """Return the hex digest of bytes: blake2b, 128 bits."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).hexdigest()


def payload_to_json(data: Any) -> Any:
    """Return a payload as plain JSON values, for display."""
    return data.fields if type(data) is Unknown else msgspec.to_builtins(data)


def _decode_payload(name: str, version: int, raw: msgspec.Raw) -> Any:
    known = lookup(name)
    if known is None or version > known.version:
        return Unknown(fields=msgspec.json.decode(raw))
    if version < known.version:
        return _upcast(known, version, raw)
    decoder = _newest_decoders.get((name, version))
    if decoder is None:
        decoder = _newest_decoders[name, version] = msgspec.json.Decoder(known.payload)
    return decoder.decode(raw)


def _upcast(known: EventType, version: int, raw: msgspec.Raw) -> Any:
    fields = msgspec.json.decode(raw)
    for older in range(version, known.version):
        fields = known.upcasters[older](fields)
    return msgspec.convert(fields, known.payload)
