"""Options of policies: a typed record for each policy, and what messages and pages tell of it.

    class StopOptions(Options):
        grace: Annotated[float, span("Time between TERM and KILL, for workers to save.")] = 30.0

The type says of what kind an option is: ``int``, ``float``, ``bool``, ``Text``, ``Literal`` (a choice), or a tuple of
texts or choices; ``number``, ``span`` (a duration) or ``says`` has its sentence and its limits.
"""

import functools
from collections.abc import Callable, Mapping
from enum import EnumMeta
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import attrs
import msgspec

DURATION_PATTERN = r"([0-9]{1,15}(\.[0-9]{1,9})? ?(ms|s|m|h|d)?|([0-9]{1,9}[dhms]){2,4})"
"""What a file may have for a duration beside a number; the parts of one in any order."""

TEXT_CHARS_MAX = 4096
"""Of one option; it goes into the log."""

Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]

_O = TypeVar("_O", bound="Options")


@attrs.frozen(kw_only=True)
class Rule:
    """What must not be within one entry of a chain.

    Args:
        options: the options that it is about; the first one set has the line.
        broken: whether it is so, of the record.
        text: what is wrong, with ``{option}`` for a value.
        given: it speaks only if one of these was set; empty: always.
    """

    options: tuple[str, ...]
    broken: Callable[[Any], bool]
    text: str
    given: tuple[str, ...] = ()


def never_reached(option: str, budget: str, beyond: int = 0) -> Rule:
    """An option that counts to more than the budget and ``beyond``."""
    return Rule(
        options=(option, budget),
        broken=lambda values: getattr(values, option) > getattr(values, budget) + beyond,
        text=f"{option} ({{{option}}}) is never reached: {budget} ({{{budget}}}) are spent before",
        given=(option,),
    )


def takes_nothing(option: str, told: str) -> Rule:
    """An option that is empty or 0, which the message tells as ``told``."""
    return Rule(
        options=(option,),
        broken=lambda values: not getattr(values, option),
        text=f"with {told} it takes nothing; leave the entry out",
    )


class Options(msgspec.Struct):
    """The options of a policy: each annotated, each with a default."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Settings that contradict each other, or have no effect."""


def says(doc: str, words: str = "") -> msgspec.Meta:
    """Annotate an option that is no number.

    Args:
        doc: one sentence.
        words: what its texts must be: ``kinds`` of observations, or ``targets`` of alerts; empty: anything.
    """
    return msgspec.Meta(description=doc, extra={"words": words})


def number(doc: str, minimum: float = 0, maximum: float | None = None) -> msgspec.Meta:
    """Annotate an ``int`` or a ``float``.

    Args:
        doc: one sentence.
        minimum: the smallest value that makes sense.
        maximum: the largest, or None.
    """
    return msgspec.Meta(description=doc, ge=minimum, le=maximum)


def span(doc: str, minimum: float = 0, maximum: float | None = None) -> msgspec.Meta:
    """Annotate a ``float`` in seconds, for which a file may have text like ``90s``, ``5m``, ``1h30m``.

    Args:
        doc, minimum, maximum: as for ``number``.
    """
    return msgspec.Meta(description=doc, ge=minimum, le=maximum, extra_json_schema={"pattern": f"^{DURATION_PATTERN}$"})


@attrs.frozen(kw_only=True)
class Option:
    """One option of a policy, as messages and pages tell of it.

    Args:
        default: its value where the file says nothing, as JSON has it.
        kind: ``int``, ``duration``, ``number``, ``bool``, ``choice``, ``text`` or ``texts``.
        doc: one sentence.
        minimum: the smallest value that makes sense, for numbers.
        maximum: the largest, or None.
        choices: for ``choice`` and ``texts``: what may be chosen; empty: anything.
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
    """Every option of a record, its own before those of the records that it extends.

    Raises:
        TypeError: an option has no sentence, no default, or one that it does not take itself; the message names it.
    """

    def depth(field: msgspec.structs.FieldInfo) -> int:
        return sum(issubclass(base, Options) and field.name in base.__struct_fields__ for base in options.__mro__)

    return {field.name: _described(field) for field in sorted(msgspec.structs.fields(options), key=depth)}


def _described(field: msgspec.structs.FieldInfo) -> Option:
    kind, meta = (*get_args(field.type), None, None)[:2]
    if not isinstance(meta, msgspec.Meta) or not meta.description:
        raise TypeError(f"the option {field.name} has no sentence: number(...), span(...) or says(...)")
    try:
        default = msgspec.json.decode(msgspec.json.encode(field.default))
        msgspec.convert(default, field.type)
    except (TypeError, msgspec.ValidationError) as error:
        raise TypeError(f"the option {field.name} has a default that it does not take: {error}") from None
    many, inner = get_origin(kind) is tuple, get_args(kind)[0] if get_origin(kind) is tuple else kind
    choices = get_args(inner) if get_origin(inner) is Literal else tuple(inner) if isinstance(inner, EnumMeta) else ()
    plain = {int: "int", float: "duration" if meta.extra_json_schema else "number", bool: "bool"}.get(kind, "text")
    return Option(
        default=default,
        kind="texts" if many else "choice" if choices else plain,
        doc=meta.description,
        minimum=meta.ge or 0,
        maximum=meta.le,
        choices=tuple(map(str, choices)),
        words=(meta.extra or {}).get("words", ""),
    )


def defaults(options: Mapping[str, Option]) -> dict[str, Any]:
    """Every option with its default, as JSON has the values: a list for ``texts``, seconds for a duration."""
    return {key: list(option.default) if option.kind == "texts" else option.default for key, option in options.items()}


def filled(options: type[_O], given: Mapping[str, Any]) -> _O:
    """The record with the values of a chain's entry; what the entry's log did not know yet has its default.

    Nothing is checked: a log holds what was in force, also where a later version would refuse it.
    """
    return options(**{key: value for key, value in given.items() if key in options.__struct_fields__})
