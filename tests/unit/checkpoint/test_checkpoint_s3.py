"""Checkpoints in an object store: a local S3 server, through s3fs."""

import os
from collections.abc import Iterator

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from stored_checkpoints import part, shard, write_checkpoint, write_shards

from ftcore.checkpoint.directory import checkpoints, newest
from ftcore.checkpoint.files import read_header, write_shard
from ftcore.checkpoint.manifest import commit
from ftcore.checkpoint.sources import FileSource
from ftcore.checkpoint.storage import UPLOAD_BYTES, Storage
from ftcore.checkpoint.verify import verify
from ftcore.cli.ftctl import main
from ftcore.errors import CheckpointError

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3 server of this process; clients find it and its keys in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}).items():
            patch.setenv(name, value)
        yield os.environ["AWS_ENDPOINT_URL"]
    server.stop()


@pytest.fixture
def storage(endpoint: str, request: pytest.FixtureRequest) -> Storage:
    """An empty prefix of a bucket."""
    boto3.client("s3").create_bucket(Bucket="bucket")
    return Storage(f"s3://bucket/{request.node.originalname} with blanks ü")


def uploads() -> list[object]:
    """Multipart uploads that are neither complete nor aborted."""
    return boto3.client("s3").list_multipart_uploads(Bucket="bucket").get("Uploads", [])


def test_a_checkpoint_is_written_listed_verified_and_removed(storage: Storage, capsys) -> None:
    """Everything as on a file system."""
    assert checkpoints(storage) == []
    write_checkpoint(storage, 10)
    names = write_shards(storage, 20)
    assert (newest(storage).step, [each.problem for each in checkpoints(storage)]) == (10, [None, "unfinished"])
    made = commit(storage, "step-000000020-r3", names)
    assert commit(storage, "step-000000020-r3", names) == made
    assert newest(storage).step == 20
    assert newest(storage).age_s < 3600
    assert verify(storage, "step-000000020-r3") == []
    assert main(["checkpoints", "--path", storage.url, "verify"]) == 0
    assert "2 checkpoints verified, 0 cannot be loaded" in capsys.readouterr().err
    storage.remove("step-000000010-r3")
    storage.remove("step-000000010-r3")
    assert [each.step for each in checkpoints(storage)] == [20]


def test_damage_is_found(storage: Storage) -> None:
    """A changed bit, a cut-off object, a missing one."""
    directory = write_checkpoint(storage)
    first, second = (f"{directory}/shard-0000{number}-of-00002.safetensors" for number in (0, 1))
    good = storage.read(first)
    storage.write(first, [good[:-1] + b"x"])
    assert [problem.kind for problem in verify(storage, directory)] == ["damaged"]
    storage.write(first, [good[:100]])
    assert [problem.kind for problem in verify(storage, directory)] == ["truncated"]
    with pytest.raises(CheckpointError, match="is truncated"):
        read_header(storage, first)
    storage.write(first, [good])
    boto3.client("s3").delete_object(Bucket="bucket", Key=f"{storage.url.removeprefix('s3://bucket/')}/{second}")
    assert [problem.kind for problem in verify(storage, directory)] == ["missing"]


def test_a_large_shard_is_uploaded_in_parts(storage: Storage) -> None:
    """And read back, in parts too."""
    index, data = shard([part("w", np.arange(3 * UPLOAD_BYTES // 4, dtype=np.float32)), part("b", np.ones(3))])
    written = write_shard(storage, "d/a", index, memoryview(data))
    assert written.bytes == storage.size("d/a") > 3 * UPLOAD_BYTES
    with FileSource(storage, "d/a", written.crc) as source:
        for piece in index.pieces:
            assert source.read(piece) == data[piece.at : piece.at + piece.bytes]
    assert uploads() == []


@pytest.mark.parametrize("size", [10, 2 * UPLOAD_BYTES])
def test_an_upload_that_fails_leaves_no_object(storage: Storage, size: int) -> None:
    """Neither a part of it, nor an upload that costs money; an object of this name stays as it was."""

    def broken() -> Iterator[bytes]:
        yield bytes(size)
        raise KeyError("mine")

    storage.write("d/a", [b"before"])
    for name in ("d/a", "d/b"):
        with pytest.raises(KeyError, match="mine"):
            storage.write(name, broken())
    assert storage.read("d/a") == b"before"
    assert [entry.name for entry in storage.list("d")] == ["a"]
    assert uploads() == []


def test_parts_of_objects_are_read(storage: Storage) -> None:
    """Up to their end and beyond, as of files."""
    storage.write("d/a", [b"0123456789"])
    storage.write("d/empty", [])
    assert [storage.read("d/a", at, size) for at, size in ((0, -1), (3, 4), (8, 9), (10, 1), (99, 1), (2, 0))] == [
        b"0123456789",
        b"3456",
        b"89",
        b"",
        b"",
        b"",
    ]
    assert (storage.read("d/empty"), storage.read("d/empty", 0, 9), storage.size("d/empty")) == (b"", b"", 0)
    with pytest.raises(CheckpointError, match="d/none: no such file") as failed:
        storage.read("d/none", 5, 5)
    assert failed.value.kind == "missing"


def test_another_node_sees_what_was_written(storage: Storage) -> None:
    """Nothing is cached: neither the absence of an object, nor its size, nor a listing."""
    other = Storage(storage.url)
    assert (other.exists("d/a"), other.list("d")) == (False, [])
    storage.write("d/a", [b"x"])
    assert (other.exists("d/a"), other.size("d/a"), [entry.name for entry in other.list("d")]) == (True, 1, ["a"])
    storage.write("d/a", [b"xyz"])
    assert (other.size("d/a"), other.read("d/a")) == (3, b"xyz")
    storage.remove("d")
    assert (other.exists("d/a"), other.list("d"), other.exists("d")) == (False, [], False)


def test_a_bucket_that_does_not_exist_is_an_error(endpoint: str) -> None:
    """With the URL and the store's reason."""
    with pytest.raises(CheckpointError, match=r"cannot write s3://nowhere/x/d/a: .*bucket"):
        Storage("s3://nowhere/x").write("d/a", [b"x"])
