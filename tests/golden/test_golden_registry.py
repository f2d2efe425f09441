"""The registry of event types only grows."""

import json
from pathlib import Path

from ftcore.events import all_types

GOLDEN = json.loads((Path(__file__).parent / "event_registry.json").read_text())
HOW = "run `python tests/golden/write.py registry` and commit what it added"


def test_no_type_is_gone_and_no_version_fell():
    """Every type that was ever released is still known, at the version of then or a later one."""
    now = {event_type.name: event_type.version for event_type in all_types()}
    gone = {name: version for name, version in GOLDEN.items() if now.get(name, 0) < version}
    assert gone == {}, "types are never removed or renamed, versions never fall"


def test_every_type_is_in_the_list():
    """A new type or version is added to the list in the same commit."""
    assert {event_type.name: event_type.version for event_type in all_types()} == GOLDEN, HOW


def test_names_are_nouns_and_past_tenses():
    """A name has the form ``noun.past_tense``, in small letters."""
    for name in GOLDEN:
        noun, dot, verb = name.partition(".")
        assert dot
        assert noun.isalpha()
        assert noun.islower()
        assert verb.replace("_", "").isalpha()
        assert verb.islower()
