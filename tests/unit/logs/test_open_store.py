"""Opening of logs: URLs, names, lazy imports."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.errors import UsageError
from ftcore.logs import check_job_name, default_store_url, open_log, open_store
from ftcore.logs.archived import ArchiveStore
from ftcore.logs.memory import MemoryStore
from ftcore.logs.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///a/b", "/a/b"),
        ("sqlite:////a/b", "/a/b"),
        ("sqlite://localhost/a/b", "/a/b"),
        ("sqlite:x/y.db", "{cwd}/x/y.db"),
        ("sqlite:///./x", "{cwd}/x"),
        ("sqlite:///~/x", "{home}/x"),
        ("sqlite:~/x", "{home}/x"),
        ("sqlite:///a%20b", "/a%20b"),
        ("sqlite://///a/b", "/a/b"),
        ("sqlite:/a/b", "/a/b"),
        ("file:////x.ftlog", "/x.ftlog"),
        ("file:///x.ftlog", "/x.ftlog"),
        ("file:x.ftlog", "{cwd}/x.ftlog"),
    ],
)
def test_paths_in_urls(url, path, tmp_path, monkeypatch):
    """A path is absolute, relative or under the home directory, and is not decoded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    store = open_store(url)
    assert type(store) is (SqliteStore if url.startswith("sqlite") else ArchiveStore)
    assert str(store._path) == path.format(cwd=tmp_path, home="/home/somebody")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlit:///x", "did you mean sqlite:///x?"),
        ("SQLite:///x", "did you mean sqlite:///x?"),
        ("etdc://h:2379/p", "did you mean etcd://h:2379/p?"),
        ("/var/log/x", "did you mean sqlite:/var/log/x?"),
        ("postgres://h/db", "known are memory:, sqlite:, etcd:, file:"),
        ("", "did you mean sqlite:"),
        ("sqlite:", "names no path"),
        ("sqlite://", "names no path"),
        ("sqlite:////", "names no path"),
        ("sqlite://dir", "names the host 'dir', but a sqlite: store is on this machine: write sqlite:///"),
        ("sqlite://host/dir", "names the host 'host'"),
        ("sqlite:///a.db?mode=ro", "a sqlite: store takes no options, found '?mode=ro'"),
        ("file:x.ftlog#1", "takes no options, found '#1'"),
        ("http://h:2379/p", "did you mean etcd://h:2379/p?"),
        ("etcd:///p", "names no host: expected etcd://"),
        ("file:///", "names no path"),
    ],
)
def test_urls_that_cannot_be_used(url, says):
    """An invalid URL is refused with a suggestion."""
    with pytest.raises(UsageError) as caught:
        open_store(url)
    assert says in str(caught.value)


def test_the_default_store(monkeypatch):
    """Without a URL the user's state directory is used; a relative XDG_STATE_HOME is ignored."""
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_store_url() == "sqlite:///home/somebody/.local/state/ftcore"
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert default_store_url() == "sqlite:///home/somebody/.local/state/ftcore"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_store_url() == "sqlite:///state/ftcore"
    assert open_store(None)._path == Path("/state/ftcore")


def test_memory_stores_are_found_by_name():
    """The name after ``memory://`` is the store's."""
    assert type(open_store("memory://a")) is MemoryStore


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "_x", "0", "x" * 100, "x..y"])
def test_good_job_names(name):
    """Letters, digits, dots, underscores and hyphens make a name."""
    assert check_job_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "x" * 101, "a/b", "a b", "a\n", "\u00e4", "a\0"])
def test_bad_job_names(name):
    """Names that could be mistaken for a path or a flag, and empty names, are invalid."""
    with pytest.raises(UsageError, match="is not a valid job name"):
        check_job_name(name)


def test_other_stores_need_no_etcd():
    """Using SQLite imports neither gRPC, nor protobuf, nor torch."""
    code = (
        "import sys; from ftcore.logs import open_store; open_store('sqlite:///x'); open_store('file:///x');"
        "sys.exit(any(m.split('.')[0] in ('grpc', 'google', 'torch') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("slashes", ["sqlite://", "sqlite:///", "sqlite:////"])
def test_a_log_behind_any_number_of_slashes(slashes, tmp_path):
    """The log is created and read at the same path."""

    async def make_and_read() -> list[str]:
        log = await open_log(f"{slashes}{tmp_path}/logs", "a", create=True)
        await log.close()
        return list(await open_store(f"sqlite:{tmp_path}/logs").jobs())

    assert asyncio.run(make_and_read()) == ["a"]
