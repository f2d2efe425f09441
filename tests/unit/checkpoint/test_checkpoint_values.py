"""Python values of a checkpoint: what comes back, and what is refused."""

import json
import math
from collections import OrderedDict, defaultdict, namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from ftcore.checkpoint.values import DEPTH_MAX, decode, encode

Pair = namedtuple("Pair", "a b")


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**200),
        0.1,
        -0.0,
        1e-320,
        "",
        "é \ud800 \U0001f600 \x00",
        b"",
        bytes(range(256)),
        [],
        (),
        {},
        [1, [2.5, (3, None)], {"a": [b"x"]}],
        {"$": "tuple", "items": [1]},
        {1: "a", (2, "b"): {None: 1.5}, b"k": (), True and 2.5: "f"},
        {"1": "text", 1: "number"},
        (3, tuple(range(625)), None),
        list(range(100_000)),
    ],
    ids=lambda value: repr(value)[:30].encode("ascii", "replace").decode(),
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """Equal, of the same types, in the same order; the text is ASCII and valid JSON."""
    text = encode(value, "x")
    found = decode(text)
    assert repr(found) == repr(value)
    assert text.isascii()
    json.loads(text)


def test_floats_that_json_lacks_come_back() -> None:
    """Infinity and NaN, as values and as keys."""
    found = decode(encode([math.inf, -math.inf, math.nan, {math.inf: math.nan}], "x"))
    assert repr(found) == "[inf, -inf, nan, {inf: nan}]"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(-3), -3),
        (np.uint8(255), 255),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.float16("nan"), math.nan),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        ([np.int32(1), {"a": (np.int16(2),)}], [1, {"a": (2,)}]),
        (OrderedDict([("b", 1), ("a", 2)]), {"b": 1, "a": 2}),
    ],
)
def test_numbers_of_numpy_and_ordered_dicts_become_plain(value: Any, plain: Any) -> None:
    """Their types are not needed to go on; the numbers are exact."""
    assert repr(decode(encode(value, "x"))) == repr(plain)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "sampler cannot be saved: it is a builtins.set; expected None, bool, .*convert it with sorted()"),
        ({"a": [0, object()]}, r"sampler\['a'\]\[1\] cannot be saved: it is a builtins.object"),
        ({frozenset(): 1}, "a key of sampler cannot be saved: it is a builtins.frozenset"),
        (np.zeros(3), "sampler cannot be saved: it is a numpy.ndarray; .*register it as a tensor"),
        (np.array(3), "sampler cannot be saved: it is a numpy.ndarray"),
        (np.datetime64("2020-01-01"), "it is a datetime.date"),
        (1j, "it is a builtins.complex"),
        (Pair(1, 2), "Pair; .*convert it in state_dict"),
        (defaultdict(list), "convert it with dict()"),
        (bytearray(b"x"), "convert it with bytes()"),
        (Colour.RED, "Colour"),
        (print, "it is a builtins.builtin_function_or_method"),
        (10**5000, "sampler cannot be saved: Exceeds the limit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_types_are_refused_by_name(value: Any, message: str) -> None:
    """With where it is in the value, its type, and what to do: never a value that comes back as something else."""
    with pytest.raises(ValueError, match=message):
        encode(value, "sampler")


def test_a_value_that_contains_itself_is_refused() -> None:
    """And one that is nested too deeply; the allowed depth comes back."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match=f"more than {DEPTH_MAX} levels, or the value contains itself"):
        encode(loop, "x")
    deep: Any = 1.5
    for _ in range(DEPTH_MAX):
        deep = (deep,)
    assert decode(encode(deep, "x")) == deep


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"$":"object","items":[]}',
        '{"$":["tuple"]}',
        '{"$":"tuple"}',
        '{"$":"dict","items":[[[],1]]}',
        '{"$":"dict","items":[1]}',
        '{"$":"bytes","base64":"!"}',
        '{"$":"bytes","base64":"é"}',
        '{"$":"float","is":"1"}',
        "NaN",
        "[" * 100_000,
        "\x80\x04\x95",
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_a_text_of_another_origin_is_refused(text: str) -> None:
    """One kind of error, and nothing is executed."""
    with pytest.raises(ValueError):
        decode(text)
