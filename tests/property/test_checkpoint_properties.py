"""Retention keeps what can be needed; values and shards come back as they were."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors import deserialize
from stored_checkpoints import part, shard

from ftcore.checkpoint.directory import FoundCheckpoint, by_age
from ftcore.checkpoint.files import directory_name, read_header, write_shard
from ftcore.checkpoint.layout import ITEM_BYTES, Piece
from ftcore.checkpoint.problems import ProblemKind
from ftcore.checkpoint.retention import to_remove
from ftcore.checkpoint.sources import FileSource
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.values import decode, encode
from ftcore.errors import CheckpointError

STEP, ROUND = st.integers(0, 60), st.integers(1, 5)
checkpoints = st.lists(
    st.builds(
        lambda step, round_, **rest: FoundCheckpoint(
            directory=directory_name(step, round_), step=step, round=round_, **rest
        ),
        STEP,
        ROUND,
        job=st.sampled_from(["demo", "demo", "demo", "other", ""]),
        log=st.sampled_from("aab"),
        modified=st.sampled_from([0.0, 10.0, 20.0, 30.0]),
        age_s=st.sampled_from([None, 5.0, 5000.0]),
        problem=st.sampled_from([None, None, None, *ProblemKind]),
    ),
    unique_by=lambda each: each.directory,
    max_size=20,
)
tags = st.lists(st.builds(directory_name, STEP, ROUND), max_size=3)


@given(checkpoints, st.integers(-1, 4), st.integers(-1, 20), tags)
def test_retention_never_removes_what_is_needed(
    found: list[FoundCheckpoint], keep_last: int, keep_every: int, tagged: list[str]
) -> None:
    """The newest complete one, tagged ones, those of other jobs, and unfinished ones that are newer or young."""
    removed = to_remove(found, keep_last, keep_every, tagged, job="demo")
    mine = [each for each in found if each.job == "demo"]
    complete = by_age([each for each in mine if each.complete])
    assert set(removed) <= {each.directory for each in mine} - set(tagged)
    assert len(set(removed)) == len(removed)
    if not complete:
        assert removed == []
        return
    newest = complete[-1]
    assert newest.directory not in removed
    for each in mine:
        if not each.complete and each.directory in removed:
            assert each.age_s == 5000.0
            assert each.log != newest.log or (each.round, each.step) < (newest.round, newest.step)
            assert each.problem not in (ProblemKind.NEWER, ProblemKind.UNREADABLE, ProblemKind.FOREIGN)


def in_time(found: list[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """The same checkpoints, each changed no earlier than those before it in its log."""
    made = []
    for log in sorted({each.log for each in found}):
        mine = sorted((each for each in found if each.log == log), key=lambda each: (each.round, each.step))
        times = sorted(each.modified for each in mine)
        made += [msgspec.structs.replace(each, modified=time) for each, time in zip(mine, times, strict=True)]
    return made


@given(checkpoints.map(in_time), st.integers(1, 4), st.integers(0, 20))
def test_retention_is_stable(found: list[FoundCheckpoint], keep_last: int, keep_every: int) -> None:
    """After it, there is nothing more to remove; and the newest one is the same, in whatever order they are listed."""
    removed = to_remove(found, keep_last, keep_every, job="demo")
    left = [each for each in found if each.directory not in removed]
    assert to_remove(left, keep_last, keep_every, job="demo") == []
    assert set(to_remove(found[::-1], keep_last, keep_every, job="demo")) == set(removed)

    def newest(some: list[FoundCheckpoint]) -> FoundCheckpoint | None:
        mine = by_age([each for each in some if each.complete and each.job == "demo"])
        return mine[-1] if mine else None

    assert newest(left) == newest(found)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 10), st.integers(1, 7))
def test_retention_keeps_the_last_and_every_so_many(count: int, keep_last: int, keep_every: int, every: int) -> None:
    """Of a job that saves every few steps, cleaned up after each save: the same as if it was done once at the end."""
    there: list[FoundCheckpoint] = []
    for number in range(1, count + 1):
        step = number * every
        there.append(
            FoundCheckpoint(directory=directory_name(step, 1), step=step, round=1, job="demo", modified=1.0 * step)
        )
        removed = to_remove(there, keep_last, keep_every, job="demo")
        there = [each for each in there if each.directory not in removed]
    steps = [number * every for number in range(1, count + 1)]
    kept = set(steps[-keep_last:])
    if keep_every:
        for number in {step // keep_every for step in steps}:
            kept.add(min(step for step in steps if step // keep_every == number))
    assert {each.step for each in there} == kept


keys = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
values = st.recursive(
    st.one_of(keys, st.floats()),
    lambda below: st.one_of(
        st.lists(below, max_size=4),
        st.lists(below, max_size=4).map(tuple),
        st.dictionaries(st.one_of(keys, st.tuples(keys, keys)), below, max_size=4),
        st.dictionaries(st.sampled_from(["$", "a", "items"]), below, max_size=3),
    ),
    max_leaves=25,
)


@given(values)
def test_values_come_back(value: Any) -> None:
    """With their types, signs of zeros and order."""
    assert repr(decode(encode(value, "x"))) == repr(value)


@given(st.text())
def test_decode_refuses_or_returns(text: str) -> None:
    """Any text: a value or a ``ValueError``."""
    try:
        decode(text)
    except ValueError:
        return


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(
    st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.sampled_from(sorted(ITEM_BYTES)), shapes), max_size=6),
    st.text(st.characters(codec="utf-8")),
    st.binary(min_size=64, max_size=64),
)
def test_shards_come_back(tensors: list[tuple[str, str, tuple[int, ...]]], values_: str, noise: bytes) -> None:
    """Of any names, types and shapes; the safetensors library opens the file."""
    assume(len({name for name, _, _ in tensors}) == len(tensors))
    parts = []
    for name, dtype, shape in tensors:
        count = math.prod(shape) * ITEM_BYTES[dtype]
        parts.append((Piece(name, dtype, shape, (0,) * len(shape), shape), (noise * count)[:count]))
    index, data = shard(parts, values=values_)
    storage = Storage("memory://properties")
    write_shard(storage, "a", index, memoryview(data))
    with FileSource(storage, "a") as source:
        assert source.index == index
        for piece, (_, expected) in zip(index.pieces, parts, strict=True):
            assert source.read(piece) == expected
    found = dict(deserialize(storage.read("a")))
    assert len(found) == len(tensors) + 1
    assert sorted(bytes(each["data"]) for each in found.values()) == sorted([values_.encode(), *(r for _, r in parts)])


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_any_changed_bit_of_a_header_is_found(at: int, bit: int) -> None:
    """As an error of ftcore: whatever it changes, nothing else is raised."""
    index, data = shard([part("w", np.ones(3)), part("b", np.ones(2, dtype=np.int8))])
    storage = Storage("memory://properties")
    write_shard(storage, "b", index, memoryview(data))
    raw = bytearray(storage.read("b"))
    ends = 8 + int.from_bytes(raw[:8], "little")
    raw[at % ends] ^= 1 << bit
    storage.write("b", [bytes(raw)])
    with pytest.raises(CheckpointError):
        read_header(storage, "b")
