"""The URL of an etcd store, with defaults from the environment."""

from pathlib import Path

import pytest

from ftcore.errors import UsageError
from ftcore.etcd3 import Client, Config
from ftcore.etcd3.transport import pem


def test_url_with_everything():
    """Endpoints, default port, prefix, user and files come from the URL, the password from the environment."""
    config = Config.from_url(
        "etcd://me%40x@h1,h2:2380,[::1]:99/team/a/?ca=/c&cert=/d&key=/e", {"FTCORE_ETCD_PASSWORD": "p:w"}
    )
    assert config == Config(
        endpoints=("h1:2379", "h2:2380", "[::1]:99"),
        prefix="/team/a",
        user="me@x",
        password="p:w",
        ca="/c",
        cert="/d",
        key="/e",
    )
    assert config.tls
    assert "p:w" not in repr(config) and "p:w" not in str(config)


def test_environment_fills_what_the_url_leaves_out():
    """The URL takes precedence over the environment."""
    env = {"FTCORE_ETCD_USER": "u", "FTCORE_ETCD_PASSWORD": "p", "FTCORE_ETCD_CA": "/ca"}
    assert Config.from_url("etcd://h", env) == Config(endpoints=("h:2379",), user="u", password="p", ca="/ca")
    assert Config.from_url("etcd://v@h?ca=/other", env).user == "v"
    assert Config.from_url("etcd://h/", {}) == Config(endpoints=("h:2379",))


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("etcd:///x", "expected etcd://"),
        ("http://h", "expected etcd://"),
        ("etcd://h:0", "not host:port"),
        ("etcd://h:x", "not host:port"),
        ("etcd://h,,g", "not host:port"),
        ("etcd://::1", "brackets"),
        ("etcd://u:secret@h", "FTCORE_ETCD_PASSWORD"),
        ("etcd://u@h", "needs a password"),
        ("etcd://h?cert=/c", "must be given together"),
        ("etcd://h?tls=1", "unknown option 'tls'"),
        ("etcd://h?tls", "expected etcd://"),
    ],
)
def test_bad_urls_say_what_is_wrong(url: str, part: str):
    """A URL that cannot be used raises one clear error, and never repeats a password."""
    with pytest.raises(UsageError) as caught:
        Config.from_url(url, {})
    assert part in str(caught.value)
    assert "secret" not in str(caught.value)


def test_missing_tls_file_is_named(tmp_path: Path):
    """A certificate that cannot be read is the user's error."""
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.pem"):
        pem(Config(endpoints=("h:1",), ca=str(tmp_path / "nowhere.pem")))


def test_client_connects_to_nothing_by_itself():
    """Creating a client needs neither an event loop nor a server."""
    assert Client(Config(endpoints=("a:1", "b:2"))).endpoint == "a:1"
