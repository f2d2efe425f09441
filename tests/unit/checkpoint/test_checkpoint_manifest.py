"""Commit: what makes shards a checkpoint, and what is refused."""

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from stored_checkpoints import Part, part, rows, shard, visible, write_checkpoint, write_shards

from ftcore.checkpoint import manifest
from ftcore.checkpoint.files import directory_name, shard_name, write_shard
from ftcore.checkpoint.layout import ShardIndex
from ftcore.checkpoint.manifest import CheckpointManifest, TensorSlice, commit, overlapping
from ftcore.checkpoint.sources import FileSource
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.errors import CheckpointError

DIRECTORY = directory_name(12, 3)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """An empty storage."""
    return Storage(str(tmp_path))


def write(storage: Storage, shards: list[list[Part]], **fields: object) -> list[str]:
    """Write shards of one rank and group each; returns their names."""
    names = []
    for rank, parts in enumerate(shards):
        about = {"rank": rank, "ranks": len(shards), "group": rank, "groups": len(shards)}
        index, data = shard(parts, **(about | fields))
        names.append(shard_name(rank, len(shards)))
        write_shard(storage, f"{DIRECTORY}/{names[-1]}", index, memoryview(data))
    return names


def test_a_manifest_names_every_tensor_and_slice(storage: Storage) -> None:
    """A reader finds shape, type, file, place and checksum of each; slices of several groups are named once."""
    made = commit(storage, DIRECTORY, write_shards(storage, count=3), log="5a1e")
    assert manifest.read(storage, DIRECTORY) == made
    assert (made.job, made.log, made.step, made.round, made.ranks, made.groups) == ("demo", "5a1e", 12, 3, 3, 3)
    assert [(file.name, file.rank, file.group) for file in made.files] == [(shard_name(n, 3), n, n) for n in range(3)]
    matrix, flag = made.tensors["model/w"], made.tensors["model/flag"]
    assert (matrix.dtype, matrix.shape, len(matrix.slices)) == ("float32", (6, 5), 3)
    assert (flag.dtype, flag.shape, [each.file for each in flag.slices]) == ("bool", (3,), [0])
    expected = {piece.name + str(piece.offset): raw for n in range(3) for piece, raw in rows(n, 3, 12)}
    for piece, where in made.pieces():
        file = f"{DIRECTORY}/{made.files[where.file].name}"
        raw = storage.read(file, where.at, piece.bytes)
        assert raw == expected[piece.name + str(piece.offset)]
        with FileSource(storage, file, made.files[where.file].crc) as source:
            assert source.read(piece) == raw


def test_a_commit_is_repeated_without_a_change(storage: Storage) -> None:
    """By another node, with the names in another order: the same bytes, and the file is not written again."""
    names = write_shards(storage, count=4)
    first = commit(storage, DIRECTORY, names)
    path = Path(storage.url) / DIRECTORY / "manifest.json"
    before = path.stat()
    random.Random(3).shuffle(names)
    assert commit(Storage(storage.url), DIRECTORY, names) == first
    assert path.stat().st_ino == before.st_ino
    bytes_ = path.read_bytes()
    path.unlink()
    commit(storage, DIRECTORY, names)
    assert path.read_bytes() == bytes_


def test_one_shard_of_each_replica_group_is_enough(storage: Storage) -> None:
    """Of several, that of the lowest rank; a commit with another choice finds the checkpoint complete."""
    for rank in range(4):
        index, data = shard(rows(rank % 2, 2, 12), rank=rank, ranks=4, group=rank % 2, groups=2)
        write_shard(storage, f"{DIRECTORY}/{shard_name(rank, 4)}", index, memoryview(data))
    made = commit(storage, DIRECTORY, [shard_name(rank, 4) for rank in (3, 2, 1)])
    assert [(file.rank, file.group) for file in made.files] == [(2, 0), (1, 1)]
    assert commit(storage, DIRECTORY, [shard_name(rank, 4) for rank in (0, 3)]) == made
    assert manifest.read(storage, DIRECTORY) == made


@pytest.mark.parametrize("state", ["damaged", "shard gone", "of another directory"])
def test_a_manifest_of_no_use_is_replaced(storage: Storage, state: str) -> None:
    """It is damaged, its shards are gone, or it was copied from another checkpoint."""
    names = write_shards(storage)
    path = Path(storage.url) / DIRECTORY / "manifest.json"
    if state == "damaged":
        path.write_bytes(b'{"crc32":"00000000"}')
    elif state == "shard gone":
        index, data = shard(rows(0, 2, 12), rank=5, ranks=2, group=0, groups=2)
        write_shard(storage, f"{DIRECTORY}/{shard_name(5, 6)}", index, memoryview(data))
        commit(storage, DIRECTORY, [shard_name(5, 6), names[1]])
        (path.parent / shard_name(5, 6)).unlink()
    else:
        other = write_checkpoint(storage, 13)
        path.write_bytes((Path(storage.url) / other / "manifest.json").read_bytes())
    commit(storage, DIRECTORY, names)
    assert verify(storage, DIRECTORY) == []


def test_a_checkpoint_of_another_log_is_never_replaced(storage: Storage) -> None:
    """Two jobs with one path: the second is told to use another one."""
    write_checkpoint(storage)
    for number in range(2):
        index, data = shard(rows(number, 2, 12), rank=number, ranks=2, group=number, groups=2, log="beef")
        write_shard(storage, f"{DIRECTORY}/{shard_name(number, 7)}", index, memoryview(data))
    with pytest.raises(CheckpointError, match="is a checkpoint of another log, of job demo; use another") as failed:
        commit(storage, DIRECTORY, [shard_name(number, 7) for number in range(2)])
    assert failed.value.kind == "foreign"
    assert verify(storage, DIRECTORY) == []


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda index: {"log": "beef"}, "foreign", "log is beef, that of shard-00000-of-00003.safetensors is 5a1e"),
        (lambda index: {"job": "x"}, "foreign", "job is x"),
        (lambda index: {"step": 11}, "foreign", "step is 11"),
        (lambda index: {"round": 4}, "foreign", "round is 4"),
        (lambda index: {"ranks": 9}, "foreign", "ranks is 9"),
        (lambda index: {"groups": 2}, "foreign", "groups is 2"),
        (lambda index: {"group": 0}, "missing", "no shard of replica group 2 of 3"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(
    storage: Storage, change: Callable[[ShardIndex], dict[str, object]], kind: str, message: str
) -> None:
    """With what differs; there is no manifest afterwards."""
    names = write_shards(storage, count=3)
    index, data = shard(rows(2, 3, 12), rank=2, ranks=3, group=2, groups=3)
    changed = msgspec.structs.replace(index, **change(index))
    write_shard(storage, f"{DIRECTORY}/{names[2]}", changed, memoryview(data))
    with pytest.raises(CheckpointError, match=message) as failed:
        commit(storage, DIRECTORY, names)
    assert failed.value.kind == kind
    assert [problem.kind for problem in verify(storage, DIRECTORY)] == ["unfinished"]


def test_names_of_missing_shards_and_groups_are_told(storage: Storage) -> None:
    """A file that is not there, no file at all, and groups without a file."""
    names = write_shards(storage, count=4)
    with pytest.raises(CheckpointError, match=r"shard-00009-of-00009\.safetensors: no such file") as failed:
        commit(storage, DIRECTORY, [*names, shard_name(9, 9)])
    assert failed.value.kind == "missing"
    with pytest.raises(CheckpointError, match="no shard to commit"):
        commit(storage, DIRECTORY, [])
    with pytest.raises(CheckpointError, match="no shard of 2 replica groups, the first is 0 of 4"):
        commit(storage, DIRECTORY, names[2:])
    assert not any(name.endswith("manifest.json") for name in visible(Path(storage.url)))


@pytest.mark.parametrize(("log", "directory"), [("beef", DIRECTORY), ("", directory_name(13, 3))])
def test_the_order_and_the_shards_agree(storage: Storage, log: str, directory: str) -> None:
    """The log and the directory of the order are those of the shards."""
    names = write_shards(storage)
    (Path(storage.url) / DIRECTORY).rename(Path(storage.url) / directory)
    with pytest.raises(CheckpointError, match=r"it is of another log, of job demo|it is of step 12, round 3") as failed:
        commit(storage, directory, names, log=log)
    assert failed.value.kind == "foreign"


def matrix(begin: int, end: int, **other: object) -> Part:
    """Rows of a matrix of 4 rows."""
    values = np.zeros((end - begin, 3), dtype=other.get("dtype", np.float32))
    return part("w", values, size=other.get("size", (4, 3)), offset=(begin, 0))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([matrix(0, 2)], [matrix(3, 4)], "3 of 12 elements of w are in no shard"),
        ([matrix(0, 3)], [matrix(2, 4)], "slices of w overlap partly"),
        ([matrix(0, 2)], [matrix(1, 3)], "slices of w overlap partly"),
        ([matrix(0, 2), matrix(1, 2)], [matrix(2, 4)], "slices of w overlap partly"),
        ([matrix(0, 2)], [matrix(2, 4, dtype=np.float16)], r"w is float32 .* in one shard, float16 .* in another"),
        ([matrix(0, 2)], [matrix(2, 4, size=(5, 3))], r"shape \[4, 3\] in one shard, float32 of shape \[5, 3\]"),
    ],
)
def test_a_tensor_that_is_not_complete_is_refused(
    storage: Storage, first: list[Part], second: list[Part], message: str
) -> None:
    """With its name: nothing is found missing only when it is loaded."""
    with pytest.raises(CheckpointError, match=message):
        commit(storage, DIRECTORY, write(storage, [first, second]))


def test_uneven_and_empty_slices_are_complete(storage: Storage) -> None:
    """A rank whose share is empty, tensors without elements, without dimensions, and ranks without tensors."""
    shards = [
        [matrix(0, 3), part("none", np.zeros((2, 0), dtype=np.int8)), part("step", np.array(3.0))],
        [matrix(3, 4), part("step", np.array(3.0))],
        [matrix(4, 4)],
        [],
    ]
    made = commit(storage, DIRECTORY, write(storage, shards))
    assert {name: len(tensor.slices) for name, tensor in made.tensors.items()} == {"none": 1, "step": 1, "w": 2}
    assert verify(storage, DIRECTORY) == []


def test_overlaps_are_found_quickly_in_a_mesh() -> None:
    """A tensor split over 64 x 64 ranks: each slice is compared with those beside it."""
    mesh = [TensorSlice(0, (x * 2, y * 3), (2, 3), 0, 0) for x in range(64) for y in range(64)]
    random.Random(5).shuffle(mesh)
    assert not overlapping(mesh)
    assert overlapping([*mesh, TensorSlice(0, (7, 8), (1, 1), 0, 0)])


def test_a_manifest_is_valid_json_with_its_version(storage: Storage) -> None:
    """Other programs read it."""
    directory = write_checkpoint(storage)
    raw = storage.read(f"{directory}/manifest.json")
    about = msgspec.json.decode(raw)
    assert list(about)[:2] == ["crc32", "version"]
    assert about["tensors"]["model/w"]["slices"][1][:3] == [1, [2, 0], [2, 5]]
    assert msgspec.json.decode(raw, type=CheckpointManifest) == manifest.read(storage, directory)
