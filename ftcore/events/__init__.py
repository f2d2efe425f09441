"""Events: the envelope, the codec, and one module of event types per noun.

Importing this package registers every type.
"""

from ftcore.events import (  # noqa: F401  (declares the types)
    action,
    anomaly,
    caller,
    checkpoint,
    deadline,
    health,
    imported,
    incident,
    job,
    master,
    node,
    operator,
    policy,
    queue,
    retention,
    worker,
    world,
)
from ftcore.events.codec import GENESIS, chain, decode, decode_fact, encode, encode_fact, payload_to_json
from ftcore.events.envelope import At, Event, EventId, Fact, Unknown
from ftcore.events.registry import EventType, Kind, all_types, lookup, type_of

__all__ = [
    "GENESIS",
    "At",
    "Event",
    "EventId",
    "EventType",
    "Fact",
    "Kind",
    "Unknown",
    "all_types",
    "chain",
    "decode",
    "decode_fact",
    "encode",
    "encode_fact",
    "lookup",
    "payload_to_json",
    "type_of",
]
