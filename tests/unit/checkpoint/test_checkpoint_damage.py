"""Damage of a checkpoint is found wherever it is, and named; loading refuses it."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from stored_checkpoints import part, shard, write_checkpoint, write_shards

from ftcore.checkpoint import manifest
from ftcore.checkpoint.directory import checkpoints, newest
from ftcore.checkpoint.files import read_header, write_shard
from ftcore.checkpoint.sources import FileSource
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.errors import CheckpointError

DIRECTORY = "step-000000012-r3"
FIRST, SECOND = (f"{DIRECTORY}/shard-0000{number}-of-00002.safetensors" for number in (0, 1))
MANIFEST = f"{DIRECTORY}/manifest.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with an older checkpoint, and one of two shards."""
    write_checkpoint(Storage(str(tmp_path)), 5, 2)
    write_checkpoint(Storage(str(tmp_path)))
    return tmp_path


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def found(root: Path) -> list[tuple[str, str, str]]:
    return [(problem.kind, problem.file, problem.message) for problem in verify(Storage(str(root)), DIRECTORY)]


def load(root: Path) -> None:
    """What a loading rank reads: the manifest, and all pieces of each file."""
    storage = Storage(str(root))
    for file in manifest.read(storage, DIRECTORY).files:
        with FileSource(storage, f"{DIRECTORY}/{file.name}", file.crc) as source:
            for piece in source.index.pieces:
                source.read(piece)


def test_a_good_checkpoint_has_no_problem(root: Path) -> None:
    """And loads."""
    assert found(root) == []
    load(root)


def test_every_byte_of_a_shard_is_protected(root: Path) -> None:
    """A changed bit in length, header, padding, data or values: one problem, which names the file."""
    path = root / FIRST
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good)
        flip(path, at, at % 8)
        [(kind, file, message)] = found(root)
        assert (kind, file) == ("damaged", FIRST), at
        assert message.startswith(str(path))
        with pytest.raises(CheckpointError) as failed:
            load(root)
        assert failed.value.kind in ("damaged", "truncated"), at


def test_every_byte_of_a_manifest_is_protected(root: Path) -> None:
    """A changed bit anywhere: the checkpoint is damaged, and the older one is the newest."""
    path = root / MANIFEST
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good)
        flip(path, at, at % 8)
        [(kind, file, _)] = found(root)
        assert (kind, file) == ("damaged", MANIFEST), at
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            load(root)
    assert newest(Storage(str(root))).step == 5


def test_damaged_data_names_the_tensor(root: Path) -> None:
    """Others of its file are not affected."""
    storage = Storage(str(root))
    header = read_header(storage, SECOND)
    place = dict(zip((piece.name for piece in header.index.pieces), header.places, strict=True))["model/w"]
    flip(root / SECOND, place.at + 3)
    assert found(root) == [("damaged", SECOND, f"{root / SECOND}: the data of model/w is damaged")]
    with FileSource(storage, SECOND) as source:
        flag, matrix = source.index.pieces
        assert bytes(source.read(flag)) == b"\1\0\1"
        with pytest.raises(CheckpointError, match="the data of model/w is damaged: it does not have its checksum"):
            source.read(matrix)


def test_a_file_cut_off_anywhere_is_found(root: Path) -> None:
    """At every length, and if bytes were added; listing finds it too, without reading the data."""
    path = root / FIRST
    good = path.read_bytes()
    for size in range(len(good)):
        path.write_bytes(good[:size])
        [(kind, file, message)] = found(root)
        assert (kind, file) == ("truncated", FIRST), size
        assert f"is truncated: {size} bytes, expected {len(good)}" in message
        with pytest.raises(CheckpointError) as failed:
            read_header(Storage(str(root)), FIRST)
        assert failed.value.kind == "truncated", size
    assert newest(Storage(str(root))).step == 5
    path.write_bytes(good + b"\0")
    [(kind, _, message)] = found(root)
    assert (kind, f"is too long: {len(good) + 1} bytes" in message) == ("truncated", True)


def test_a_header_length_of_nonsense_is_found(root: Path) -> None:
    """Without an attempt to read exabytes."""
    data = (root / FIRST).read_bytes()
    (root / FIRST).write_bytes(b"\xff" * 8 + data[8:])
    [(kind, _, message)] = found(root)
    assert (kind, "the length of its header is 18446744073709551623" in message) == ("damaged", True)


def test_a_missing_shard_is_named(root: Path) -> None:
    """With its rank and replica group; the checkpoint is not complete."""
    (root / SECOND).unlink()
    assert found(root) == [
        ("missing", SECOND, f"{root / SECOND} is missing: the shard of rank 1, replica group 1"),
    ]
    [_, listed] = checkpoints(Storage(str(root)))
    assert (listed.complete, listed.problem, "is missing" in listed.why) == (False, "missing", True)
    assert [(shard.rank, shard.bytes > 0) for shard in listed.shards] == [(0, True), (1, False)]


@pytest.mark.parametrize("name", ["step-000000099-r1", "step-99", "../step-000000012-r3/.."])
def test_a_missing_checkpoint_is_named(root: Path, name: str) -> None:
    """Also a name that is none."""
    [problem] = verify(Storage(str(root)), name)
    assert (problem.kind, name in problem.message) == ("missing", True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"job": "other"}, "it is a shard of job other, the checkpoint is of job demo"),
        ({"log": "beef"}, "it is a shard of log beef, the checkpoint is of log 5a1e"),
        ({"step": 11}, "it is a shard of step 11, the checkpoint is of step 12"),
        ({"round": 2}, "it is a shard of round 2, the checkpoint is of round 3"),
        ({"rank": 0, "group": 0}, "it is the shard of rank 0, expected that of rank 1"),
        ({"ranks": 5}, "it was replaced after the checkpoint was committed"),
    ],
    ids=str,
)
def test_a_foreign_shard_is_named(root: Path, tmp_path_factory, fields: dict[str, object], message: str) -> None:
    """Of another job, log, step, round or rank, or of another save; the size may be equal."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_shards(Storage(str(elsewhere)), **fields)
    path = next(elsewhere.glob("*/shard-00001*")) if "step" not in fields else next(elsewhere.rglob("shard-00001*"))
    data = bytearray(path.read_bytes())
    shutil.copy(path, root / SECOND)
    name = manifest.MANIFEST
    about = json.loads((root / DIRECTORY / name).read_bytes())
    about["files"][1]["bytes"] = len(data)
    sign(root / DIRECTORY / name, about)
    [(kind, file, said)] = found(root)
    assert (kind, file) == ("foreign", SECOND)
    assert message in said
    with pytest.raises(CheckpointError, match="is not the file that the manifest names"):
        load(root)


def sign(path: Path, about: dict[str, object]) -> None:
    """Write a manifest with its checksum."""
    del about["crc32"]
    rest = b'",' + json.dumps(about).encode()[1:]
    path.write_bytes(b'{"crc32":"%08x' % zlib.crc32(rest) + rest)


def resign(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a shard's header, and give it its checksum."""
    data = path.read_bytes()
    ends = 8 + int.from_bytes(data[:8], "little")
    header = change(data[8:ends])
    header = header.ljust(ends - 8) if len(header) <= ends - 8 else header
    at = header.index(b'"crc32":"') + 9
    header = header[:at] + b"0" * 8 + header[at + 8 :]
    crc = zlib.crc32(len(header).to_bytes(8, "little") + header)
    header = header[:at] + b"%08x" % crc + header[at + 8 :]
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[ends:])


def test_a_newer_format_is_refused_by_name(root: Path) -> None:
    """Of a shard and of a manifest, with the version and what to do."""
    good = (root / FIRST).read_bytes()
    resign(root / FIRST, lambda header: header.replace(b'"ftcore.shard":"1"', b'"ftcore.shard":"7"'))
    [(kind, file, message)] = found(root)
    assert (kind, file) == ("newer", FIRST)
    assert "format 7 of shards is newer than this ftcore, which reads up to 1; update ftcore" in message
    about = json.loads((root / MANIFEST).read_bytes())
    sign(root / MANIFEST, {"crc32": "", "version": 2, "shards": about["files"]})
    [(kind, file, message)] = found(root)
    assert (kind, file) == ("newer", MANIFEST)
    assert "version 2 is newer than this ftcore, which reads up to 1; update ftcore" in message
    (root / FIRST).write_bytes(good)
    with pytest.raises(CheckpointError, match="version 2 is newer"):
        manifest.commit(Storage(str(root)), DIRECTORY, [Path(name).name for name in (FIRST, SECOND)])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"ftcore.shard":"1"', b'"ftcore.shard":"x"', "not a shard of ftcore"),
        (b'\\"job\\":\\"demo\\"', b'\\"bob\\":\\"demo\\"', "its index cannot be read"),
        (b'[\\"model/flag\\",\\"bool\\"', b'[\\"model/flag\\",\\"bols\\"', "its index is wrong"),
        (b'"ftcore.places":"[[', b'"ftcore.places":"[[9', "its places do not match its index"),
        (b'"ftcore.places":"', b'"ftcore.placed":"', "its index cannot be read"),
    ],
    ids=str,
)
def test_a_wrong_header_with_a_right_checksum_is_damage(root: Path, old: bytes, new: bytes, message: str) -> None:
    """A program that writes nonsense is no reason for a traceback."""
    assert old in (root / FIRST).read_bytes()
    resign(root / FIRST, lambda header: header.replace(old, new).rstrip())
    with pytest.raises(CheckpointError, match=message) as failed:
        read_header(Storage(str(root)), FIRST)
    assert failed.value.kind == "damaged"


def test_a_manifest_of_nonsense_with_a_right_checksum_is_damage(root: Path) -> None:
    """Fields that are missing, and a file outside of the directory, which is never read."""
    about = json.loads((root / MANIFEST).read_bytes())
    about["files"][0]["name"] = "../../secret"
    sign(root / MANIFEST, about)
    [(kind, _, message)] = found(root)
    assert (kind, "'../../secret' is not the name of a shard" in message) == ("damaged", True)
    sign(root / MANIFEST, {"crc32": "", "version": 1})
    [(kind, _, message)] = found(root)
    assert (kind, "is not a manifest of ftcore" in message) == ("damaged", True)


def test_a_copied_or_renamed_checkpoint_is_foreign(root: Path) -> None:
    """Its directory would claim another step."""
    shutil.copytree(root / DIRECTORY, root / "step-000000099-r9")
    [problem] = verify(Storage(str(root)), "step-000000099-r9")
    assert problem.kind == "foreign"
    assert "it is the manifest of step 12, round 3: the directory was renamed, or the file copied" in problem.message
    assert newest(Storage(str(root))).step == 12


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    """A safetensors file without our header, and a file that is none."""
    from safetensors.numpy import save_file

    save_file({"w": np.ones(3)}, tmp_path / "a")
    (tmp_path / "b").write_bytes(b"PK\x03\x04" + bytes(1000))
    for name in ("a", "b"):
        with pytest.raises(CheckpointError, match="not a shard of ftcore"):
            read_header(Storage(str(tmp_path)), name)


def test_nothing_of_a_checkpoint_is_executed(tmp_path: Path) -> None:
    """A value that looks like a pickle is text that cannot be decoded."""
    from ftcore.checkpoint.values import decode

    index, data = shard([part("w", np.ones(1))], values="cos\nsystem\n(S'touch pwned'\ntR.")
    write_shard(Storage(str(tmp_path)), "a", index, memoryview(data))
    with pytest.raises(ValueError, match=r"not a saved value|Expecting value"):
        decode(read_header(Storage(str(tmp_path)), "a").index.values)
