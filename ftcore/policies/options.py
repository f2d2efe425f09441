"""Options of policies: a typed record for each policy, with the descriptions for messages and documentation.

    class StopOptions(Options):
        grace: Annotated[float, span("Time between TERM and KILL, for workers to save.")] = 30.0

The type is ``int``, ``float``, ``bool``, ``Text``, ``Literal`` (a choice), or a tuple of texts or choices. ``number``,
``span`` (a duration) or ``says`` has the description and the limits.
"""

import functools
from collections.abc import Callable, Mapping
from enum import EnumMeta
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import attrs
import msgspec

DURATION_PATTERN = r"([0-9]{1,15}(\.[0-9]{1,9})? ?(ms|s|m|h|d)?|([0-9]{1,9}[dhms]){2,4})"
"""Durations as text in a policy file; the pattern does not check the order of the units."""

SIZE_PATTERN = r"[0-9]{1,19}|[0-9]{1,9}(\.[0-9]{1,9})? ?[KMGTP]i?B"
"""Sizes as text in a policy file."""

SIZE_MAX = 1 << 60
"""Largest accepted size in bytes."""

TEXT_CHARS_MAX = 4096
"""Maximum length of a text option in characters; options are stored in the log."""

Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]

_O = TypeVar("_O", bound="Options")


@attrs.frozen(kw_only=True)
class OptionRule:
    """A constraint between the options of one chain entry.

    Args:
        options: the options concerned; the message has the line of the first one that is set.
        broken: whether a record violates the constraint.
        text: the message, with ``{option}`` for a value.
        given: check the constraint only if one of these options is set; empty: always.
    """

    options: tuple[str, ...]
    broken: Callable[[Any], bool]
    text: str
    given: tuple[str, ...] = ()


def never_reached(option: str, budget: str, beyond: int = 0) -> OptionRule:
    """A rule: a count that exceeds the budget plus ``beyond`` has no effect."""
    return OptionRule(
        options=(option, budget),
        broken=lambda values: getattr(values, option) > getattr(values, budget) + beyond,
        text=f"{option} ({{{option}}}) is never reached: the budget {budget} ({{{budget}}}) is spent first; "
        f"set {option} to at most {budget}{f' + {beyond}' if beyond else ''}, or raise {budget}",
        given=(option,),
    )


def takes_nothing(option: str, setting: str) -> OptionRule:
    """A rule: the policy never takes an incident while this option is empty or 0; ``setting`` names that value."""
    return OptionRule(
        options=(option,),
        broken=lambda values: not getattr(values, option),
        text=f"never takes an incident with {setting}; remove the entry",
    )


class Options(msgspec.Struct):
    """The options of a policy. Each one is annotated and has a default."""

    rules: ClassVar[tuple[OptionRule, ...]] = ()
    """Checks for settings that contradict each other or have no effect."""


def says(doc: str, words: str = "") -> msgspec.Meta:
    """Annotate an option that is not a number.

    Args:
        doc: description, one sentence.
        words: the accepted texts: ``kinds`` of observations, or ``targets`` of alerts; empty: any text.
    """
    return msgspec.Meta(description=doc, extra={"words": words})


def number(doc: str, minimum: float = 0, maximum: float | None = None) -> msgspec.Meta:
    """Annotate an ``int`` or a ``float``.

    Args:
        doc: description, one sentence.
        minimum: smallest accepted value.
        maximum: largest accepted value, or None.
    """
    return msgspec.Meta(description=doc, ge=minimum, le=maximum)


def span(doc: str, minimum: float = 0, maximum: float | None = None) -> msgspec.Meta:
    """Annotate a ``float`` in seconds; policy files may write it as ``90s``, ``5m`` or ``1h30m``.

    Args:
        doc, minimum, maximum: as for ``number``.
    """
    return msgspec.Meta(description=doc, ge=minimum, le=maximum, extra_json_schema={"pattern": f"^{DURATION_PATTERN}$"})


def size(doc: str) -> msgspec.Meta:
    """Annotate an ``int`` in bytes; policy files may write it as ``500MiB`` or ``1.5TB``.

    Args:
        doc: description, one sentence.
    """
    return msgspec.Meta(description=doc, ge=0, le=SIZE_MAX, extra_json_schema={"pattern": f"^({SIZE_PATTERN})$"})


@attrs.frozen(kw_only=True)
class Option:
    """Description of one option of a policy, for messages and documentation.

    Args:
        default: default value, as in JSON.
        kind: ``int``, ``duration``, ``size``, ``number``, ``bool``, ``choice``, ``text`` or ``texts``.
        doc: description, one sentence.
        minimum: smallest accepted number.
        maximum: largest accepted number, or None.
        choices: for ``choice`` and ``texts``: the accepted values; empty: any.
        words: as in ``says``.
    """

    default: Any
    kind: str
    doc: str
    minimum: float = 0
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    words: str = ""


@functools.cache
def described(options: type[Options]) -> Mapping[str, Option]:
    """The options of a record by name, its own before inherited ones.

    Raises:
        TypeError: an option has no description, no default, or an invalid default; the message names the option.
    """

    def depth(field: msgspec.structs.FieldInfo) -> int:
        return sum(issubclass(base, Options) and field.name in base.__struct_fields__ for base in options.__mro__)

    return {field.name: _described(field) for field in sorted(msgspec.structs.fields(options), key=depth)}


def _described(field: msgspec.structs.FieldInfo) -> Option:
    kind, meta = (*get_args(field.type), None, None)[:2]
    if not isinstance(meta, msgspec.Meta) or not meta.description:
        raise TypeError(f"option {field.name}: no description; annotate it with number(...), span(...) or says(...)")
    try:
        default = msgspec.json.decode(msgspec.json.encode(field.default))
        msgspec.convert(default, field.type)
    except (TypeError, msgspec.ValidationError) as error:
        raise TypeError(f"option {field.name}: invalid default: {error}") from None
    many, inner = get_origin(kind) is tuple, get_args(kind)[0] if get_origin(kind) is tuple else kind
    choices = get_args(inner) if get_origin(inner) is Literal else tuple(inner) if isinstance(inner, EnumMeta) else ()
    as_text = bool(meta.extra_json_schema)
    plain = {int: "size" if as_text else "int", float: "duration" if as_text else "number", bool: "bool"}
    return Option(
        default=default,
        kind="texts" if many else "choice" if choices else plain.get(kind, "text"),
        doc=meta.description,
        minimum=meta.ge or 0,
        maximum=meta.le,
        choices=tuple(map(str, choices)),
        words=(meta.extra or {}).get("words", ""),
    )


def defaults(options: Mapping[str, Option]) -> dict[str, Any]:
    """The default of every option, as in JSON: a list for ``texts``, seconds for a duration."""
    return {key: list(option.default) if option.kind == "texts" else option.default for key, option in options.items()}


def filled(options: type[_O], given: Mapping[str, Any]) -> _O:
    """The record with the values of a chain entry; options that the entry's log does not have get their defaults.

    Nothing is validated: a log has the values that were in force, even if a later version would refuse them.
    """
    return options(**{key: value for key, value in given.items() if key in options.__struct_fields__})
