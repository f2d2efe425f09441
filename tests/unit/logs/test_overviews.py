"""The cache of overviews: private, bounded, and written by several readers at once."""

import os
import threading
import time
from pathlib import Path

import pytest

from ftcore.logs import overviews
from ftcore.logs.overviews import FILE_BYTES_MAX, FILES_MAX, OverviewCache, cache_directory, code_digest


def test_an_overview_is_kept_in_a_private_file(tmp_path: Path) -> None:
    """Others can neither read nor write it."""
    cache = OverviewCache(tmp_path / "some" / "where")
    assert cache.read("ab") is None
    assert cache.write("ab", b"one") and cache.write("ab", b"two")
    assert cache.read("ab") == b"two"
    (path,) = (tmp_path / "some" / "where").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_of_others_is_not_read(tmp_path: Path) -> None:
    """Nor a link, a pipe or a file in a directory that others may write."""
    directory = tmp_path / "cache"
    cache = OverviewCache(directory)
    cache.write("ab", b"one")
    (directory / "cd.ftview").symlink_to(directory / "ab.ftview")
    os.mkfifo(directory / "ef.ftview", 0o600)
    assert cache.read("cd") is None and cache.read("ef") is None
    (directory / "ab.ftview").chmod(0o620)
    assert cache.read("ab") is None
    (directory / "ab.ftview").chmod(0o600)
    assert cache.read("ab") == b"one"
    directory.chmod(0o770)
    assert cache.read("ab") is None and not cache.write("ab", b"two")


def test_the_oldest_are_removed(tmp_path: Path) -> None:
    """With drafts of killed writers; files of other names stay."""
    cache = OverviewCache(tmp_path / "cache")
    keys = [f"{number:04x}" for number in range(FILES_MAX + 5)]
    for age, key in enumerate(reversed(keys)):
        cache.write(key, b"x")
        os.utime(tmp_path / "cache" / f"{key}.ftview", (age, age))
    draft, young, other = (tmp_path / "cache" / name for name in (".0001.12345678", ".0002.12345678", "note"))
    for path in (draft, young, other):
        path.write_bytes(b"")
    long_ago = time.time() - 2 * overviews.DRAFT_S
    os.utime(draft, (long_ago, long_ago))
    assert cache.write("ffff", b"x")
    left = {path.stem for path in (tmp_path / "cache").glob("*.ftview")}
    assert len(left) == FILES_MAX and {"ffff", keys[0]} <= left and keys[-1] not in left
    assert not draft.exists() and young.exists() and other.exists()


def test_one_that_is_too_large_is_not_written(tmp_path: Path) -> None:
    """Nor does it remove another."""
    cache = OverviewCache(tmp_path / "cache")
    cache.write("ab", b"one")
    assert not cache.write("ab", bytes(FILE_BYTES_MAX + 1))
    assert cache.read("ab") == b"one"


def test_several_readers_write_and_read_at_once(tmp_path: Path) -> None:
    """Each reading finds a whole one."""
    bodies = [bytes([number]) * 200_000 for number in range(4)]
    wrong: list[bytes | None] = []
    OverviewCache(tmp_path / "cache").write("ab", bodies[0])

    def work(body: bytes) -> None:
        cache = OverviewCache(tmp_path / "cache")
        for _ in range(30):
            if not cache.write("ab", body) or (found := cache.read("ab")) not in bodies:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["ab.ftview"]


def test_the_directory_follows_the_specification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative path is invalid."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "ftcore" / "overviews"
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "ftcore" / "overviews"


def test_the_code_has_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on the sources; sources that cannot be read have none."""
    whole = code_digest()
    assert len(whole) == 64
    monkeypatch.setattr(overviews, "CODE", overviews.CODE[1:])
    assert code_digest() not in (whole, "")
    monkeypatch.setattr(overviews, "CODE", ("missing.py",))
    assert code_digest() != whole
