"""Storage of checkpoints: a file is there with all of its bytes, or not at all."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from stored_checkpoints import child, part, shard, visible, write_checkpoint

from ftcore.checkpoint.bandwidth import BandwidthLimit
from ftcore.checkpoint.directory import checkpoints, newest
from ftcore.checkpoint.files import shard_name, write_shard
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.errors import CheckpointError, StorageFull

MIB = 1 << 20

WRITER = """
    import os, sys
    from pathlib import Path
    from stored_checkpoints import write_shards
    from ftcore.checkpoint.manifest import commit
    from ftcore.checkpoint.storage import Storage

    url, where = sys.argv[1:]
    storage = Storage(url)

    def stop():
        print("now", flush=True)
        sys.stdin.read()

    def endless():
        yield bytes(3 << 20)
        stop()

    def at_fsync(fd, number=[0]):
        number[0] += 1
        if os.path.isfile(f"/proc/self/fd/{fd}"):
            stop()
        return kept(fd)

    kept = os.fsync
    if where == "data":
        storage.write("step-000000020-r3/shard-00000-of-00002.safetensors", endless())
    elif where == "fsync":
        os.fsync = at_fsync
        write_shards(storage, 20)
    else:
        names = write_shards(storage, 20)
        os.fsync = at_fsync
        commit(storage, "step-000000020-r3", names)
"""


@pytest.fixture(params=["local", "a path with blanks, ünïcode, 100% and #?", "file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of each kind."""
    name = request.param
    if name == "memory":
        return Storage(f"memory://{tmp_path.name}")
    return Storage(f"file://{tmp_path}/x" if name == "file" else f"{tmp_path}/{name}")


def test_files_are_written_read_listed_and_removed(storage: Storage) -> None:
    """The same on each kind of storage."""
    assert storage.list() == []
    assert storage.write("d/b", [b"one", memoryview(b"two")]) == 6
    assert storage.write("d/a", iter([])) == 0
    assert storage.write("d/b", [b"longer than before"], expected=18) == 18
    assert (storage.read("d/b"), storage.read("d/b", 7, 4), storage.size("d/b")) == (b"longer than before", b"than", 18)
    assert (storage.read("d/b", 12, 100), storage.read("d/b", 18, 5), storage.read("d/a", 0, 5)) == (
        b"before",
        b"",
        b"",
    )
    buffer = bytearray(8)
    assert storage.read_into("d/b", 12, memoryview(buffer)) == 6
    assert buffer == b"before\0\0"
    assert [(entry.name, entry.bytes, entry.is_directory) for entry in storage.list("d")] == [
        ("a", 0, False),
        ("b", 18, False),
    ]
    assert [(entry.name, entry.is_directory) for entry in storage.list()] == [("d", True)]
    assert all(entry.modified > 1e9 for entry in storage.list("d"))
    assert [storage.exists(name) for name in ("d", "d/a", "d/c", "d/a/x", "e")] == [True, True, False, False, False]
    storage.remove("d")
    storage.remove("d")
    assert storage.list() == []


@pytest.mark.parametrize("operation", ["read", "size"])
def test_a_missing_file_is_an_error_of_its_own_kind(storage: Storage, operation: str) -> None:
    """It names the path."""
    with pytest.raises(CheckpointError, match="d/none: no such file") as failed:
        getattr(storage, operation)("d/none")
    assert failed.value.kind == "missing"


def test_an_error_of_the_content_is_raised_as_it_is(storage: Storage) -> None:
    """And leaves no file, and the one before as it was."""

    def broken() -> Iterator[bytes]:
        yield bytes(3 * MIB)
        raise KeyError("mine")

    storage.write("d/a", [b"before"])
    for name in ("d/a", "d/b"):
        with pytest.raises(KeyError, match="mine"):
            storage.write(name, broken())
    assert [entry.name for entry in storage.list("d")] == ["a"]
    assert storage.read("d/a") == b"before"


def test_nothing_is_left_on_disk_by_a_failed_write(tmp_path: Path) -> None:
    """Not even a temporary file."""
    with pytest.raises(ZeroDivisionError):
        Storage(str(tmp_path)).write("d/a", (bytes(1 // number) for number in (1, 0)))
    assert visible(tmp_path) == set()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "no path for checkpoints: expected a directory, or a URL"),
        ("nonsense://x", "cannot use nonsense://x: Protocol not known: nonsense"),
    ],
)
def test_an_unknown_storage_is_refused(url: str, message: str) -> None:
    """With what was given."""
    with pytest.raises(CheckpointError, match=message):
        Storage(url)


def test_a_storage_whose_package_is_missing_is_refused() -> None:
    """fsspec says which one to install."""
    with pytest.raises(CheckpointError, match=r"cannot use gs://bucket: .*gcsfs"):
        Storage("gs://bucket")


def test_a_path_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    """The error names the path and the reason."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"cannot write .*/file/d/a: File exists"):
        Storage(str(tmp_path / "file")).write("d/a", [b"x"])


@pytest.mark.parametrize("where", ["data", "fsync", "commit"])
def test_a_killed_writer_leaves_no_visible_checkpoint(tmp_path: Path, where: str) -> None:
    """SIGKILL between two chunks, before a shard is durable, and before the manifest is: the one before stays."""
    storage = Storage(str(tmp_path))
    before = write_checkpoint(storage)
    with child(WRITER, str(tmp_path), where) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.kill()
        process.wait()
    found = newest(storage)
    assert found is not None and found.directory == before
    [_, cut_off] = checkpoints(storage)
    assert (cut_off.problem, len(cut_off.shards)) == ("unfinished", 2 if where == "commit" else 0)
    assert [problem.kind for problem in verify(storage, "step-000000020-r3")] == ["unfinished"]
    assert verify(storage, before) == []
    assert write_checkpoint(storage, 20) == "step-000000020-r3"
    assert verify(storage, "step-000000020-r3") == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place = tmp_path / "small disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "ftcore-test", place], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mount: {done.stderr.decode()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_reported_and_keeps_what_is_there(small_disk: Path) -> None:
    """``StorageFull`` names the file; the earlier checkpoint stays, no partial file does; later there is space."""
    storage = Storage(str(small_disk))
    before = write_checkpoint(storage)
    kept = visible(small_disk)
    index, data = shard([part("w", np.zeros(2 * MIB, dtype=np.uint8))], step=20)
    name = f"step-000000020-r3/{shard_name(0, 1)}"
    with pytest.raises(StorageFull, match=f"cannot write {storage.where(name)}: No space left on device; free space"):
        write_shard(storage, name, index, memoryview(data))
    assert visible(small_disk) == kept
    assert verify(storage, before) == []
    storage.remove(before)
    storage.write(name, [bytes(MIB // 2)])


def test_a_limit_of_file_sizes_counts_as_full(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, as a quota of a batch system: no partial file."""
    code = """
        import resource, sys
        from ftcore.checkpoint.storage import Storage
        from ftcore.errors import StorageFull
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            Storage(sys.argv[1]).write("d/a", [bytes(3 << 20)])
        except StorageFull as error:
            print(error)
    """
    with child(code, str(tmp_path)) as process:
        said, _ = process.communicate()
    assert "d/a: File too large; free space there" in said
    assert visible(tmp_path) == set()


def test_a_remote_storage_that_is_full_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the kind of storage; the temporary file is removed."""
    storage = Storage("memory://full")
    files = fsspec.filesystem("memory")
    opened = type(files)._open

    def failing(self, path, mode="rb", **rest):
        file = opened(self, path, mode, **rest)
        if mode == "wb":
            monkeypatch.setattr(file, "write", fails, raising=False)
        return file

    def fails(data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(files), "_open", failing)
    with pytest.raises(StorageFull, match="cannot write memory://full/d/a: No space left"):
        storage.write("d/a", [b"x"])
    assert files.find("/full") == []


def test_the_manifest_is_removed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that is cut off leaves no directory that looks complete."""
    storage = Storage(str(tmp_path))
    directory = write_checkpoint(storage)
    kept = shutil.rmtree

    def cut_off(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(shutil, "rmtree", cut_off)
    with pytest.raises(CheckpointError, match=r"cannot remove .*/step-000000012-r3: Input/output error"):
        storage.remove(directory)
    assert newest(storage) is None
    monkeypatch.setattr(shutil, "rmtree", kept)
    storage.remove(directory)
    assert storage.list() == []


def test_writers_share_the_bandwidth() -> None:
    """Each waits until the bytes before it have used their time; time that passes otherwise counts."""
    clock = [100.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    limit = BandwidthLimit(1000, lambda: clock[0], sleep)
    first, second = limit.paced([bytes(500)] * 3), limit.paced([bytes(250)] * 2)
    assert len(next(first)) == 500 and len(next(second)) == 250
    next(first)  # its first chunk is written now
    next(second)
    assert slept == [0.5, 0.25]
    clock[0] += 10
    next(first)
    assert slept == [0.5, 0.25, 0.5]
    assert list(BandwidthLimit(0, lambda: clock[0], sleep).paced([bytes(10**6)])) and len(slept) == 3


def test_a_limited_storage_writes_all(tmp_path: Path) -> None:
    """With real time, of which little is needed here."""
    storage = Storage(str(tmp_path), bandwidth=1e9)
    assert storage.write("a", [bytes(100_000)] * 3) == 300_000
    assert storage.size("a") == 300_000


@pytest.mark.parametrize(
    "code",
    [
        "import ftcore.checkpoint.layout, ftcore.checkpoint.values, ftcore.checkpoint.verify",
        "import ftcore.checkpoint.directory as d, ftcore.checkpoint.storage as s; d.newest(s.Storage('/nowhere'))",
        "import ftcore.cli.ftrun_job, ftcore.runtime.agent.agent",
    ],
)
def test_fsspec_is_loaded_only_for_a_url(code: str) -> None:
    """The agent never loads it, and a storage that is a path does not need it; neither loads torch or numpy."""
    code += "; import sys; print([name for name in ('fsspec', 'torch', 'numpy', 'safetensors') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
