"""Events as plain JSON values, for people and other programs; ``events/codec.py`` has the form at rest."""

from typing import Any

import msgspec

from ftcore.events.codec import payload_to_json
from ftcore.events.envelope import Event
from ftcore.events.policy import PolicyLoaded
from ftcore.wording import timestamp_fields


def event_json(event: Event) -> dict[str, Any]:
    """An event with all fields of its envelope; URLs in a policy are reduced to their scheme.

    The id is an object named ``event_id``, because ``id`` is a string in all other output.
    """
    fields: dict[str, Any] = msgspec.structs.asdict(event)
    fields = {"seq": event.seq, "event_id": event.id._asdict()} | {k: v for k, v in fields.items() if k != "id"}
    data = payload_to_json(event.data)
    at = event.at
    fields["at"] = None if at is None else {**timestamp_fields("wall", at.wall), "mono_ns": at.mono, "boot": at.boot}
    fields = {key: value for name, field in fields.items() for key, value in _json_fields(name, field).items()}
    if isinstance(event.data, PolicyLoaded):
        from ftcore.policies.targets import hidden  # the traits of all policies

        data = hidden(data)
    return {**fields, "data": data}


def _json_fields(name: str, value: Any) -> dict[str, Any]:
    return timestamp_fields(name, value) if name == "time" else {name: value}
