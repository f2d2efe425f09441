"""Credentials and handshakes: what is accepted, and what is refused with which message."""

import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
import trustme

from ftcore.errors import UsageError
from ftcore.events.caller import CallerRefused
from ftcore.events.job import JobSpec
from ftcore.ids import seconds
from ftcore.launch import paths
from ftcore.runtime.master.refusals import Refusals
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.handshake import HANDSHAKE_BYTES_MAX, Admitted, CallerHandshake, Handshake, Rejection
from ftcore.runtime.wire.security import from_environ

TOKEN = "0123456789abcdef-a"
COMMAND = frames.encode(frames.Command(job="j", command="stop", who="me", why="", exit_code=5))


def hello(protocol: int = frames.PROTOCOL) -> bytes:
    submission = frames.submission(JobSpec(argv=("t.py",), nodes_min=1, nodes_max=1))
    word = frames.Hello(protocol=protocol, version="9", job="j", node="n", incarnation="i", submission=submission)
    return frames.encode(word)


def knocked(
    opening: Handshake, token: str = TOKEN, body: bytes = COMMAND
) -> tuple[CallerHandshake, frames.AuthProof | None]:
    call = CallerHandshake(token, "j", "n")
    challenge = opening.receive(frames.encode(call.request))
    assert isinstance(challenge, frames.Challenge)
    return call, call.answer(challenge, body)


def test_the_token_opens_and_never_crosses_the_wire():
    """Callers that know the token are admitted, agents and operators alike; neither side sends it."""
    for body in (COMMAND, hello()):
        opening = Handshake(TOKEN, "j")
        call, sealed = knocked(opening, body=body)
        assert sealed is not None
        found = opening.receive(frames.encode(sealed))
        assert isinstance(found, Admitted)
        assert frames.encode(found.frame) == body
        assert TOKEN.encode() not in frames.encode(call.request) + frames.encode(sealed)
    assert isinstance(Handshake("", "j").receive(hello()), Admitted)


def test_who_is_refused_and_why():
    """A replayed handshake, another token, another job, another version, no token, garbage, a huge first frame."""
    opening, again = Handshake(TOKEN, "j"), Handshake(TOKEN, "j")
    call, sealed = knocked(opening)
    assert sealed is not None
    again.receive(frames.encode(call.request))
    forged = frames.AuthProof(nonce=sealed.nonce, proof="0" * 64, body=sealed.body)
    swapped = frames.AuthProof(nonce=sealed.nonce, proof=sealed.proof, body=frames.msgspec.Raw(hello()))
    knocks = [frames.encode(CallerHandshake(TOKEN, job, "n").request) for job in ("j", "other")]
    unlike = Handshake(TOKEN, "j")
    assert knocked(unlike, "another-token-0123")[1] is None  # the caller notices first, tells nothing, and says so
    cases = [
        (again, frames.encode(sealed), "replay", "another stream"),
        (opening, frames.encode(forged), "token", "wrong token"),
        (opening, frames.encode(swapped), "token", "wrong token"),
        (unlike, frames.encode(frames.AuthReject()), "token", "wrong token"),
        (Handshake(TOKEN, "j"), knocks[1], "job", "leads j, not other"),
        (Handshake(TOKEN, "j"), knocks[0].replace(b'"protocol":2', b'"protocol":7'), "version", "same version"),
        (Handshake(TOKEN, "j"), hello(7), "version", "protocol 7 (ftcore 9)"),
        (Handshake(TOKEN, "j"), b'{"f":"salute","protocol":7,"version":"9","node":"n"}', "version", "same version"),
        (Handshake(TOKEN, "j"), hello(), "token", "FTCORE_TOKEN_FILE"),
        (Handshake(TOKEN, "j"), COMMAND, "token", "FTCORE_TOKEN_FILE"),
        (Handshake(TOKEN, "j"), b"[" * 3_000_000, "token", "requires a token"),
        (Handshake("", "j"), knocks[0], "token", "has no token"),
        (Handshake("", "j"), b"GET / HTTP/1.1", "unreadable", "not a frame"),
        (Handshake("", "j"), frames.encode(frames.Beat(round=1)), "unreadable", "cannot open a stream"),
        (Handshake("", "j"), frames.encode(sealed), "unreadable", "cannot open a stream"),
    ]
    for case, body, kind, words in cases:
        found = case.receive(body)
        assert isinstance(found, Rejection), (kind, found)
        assert (found.kind, words in found.reason) == (kind, True), found
        assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("secret", {}),
        ("secret", {"protocol": 99}),
        ("", {"protocol": 99, "f": "command2"}),
        ("", {"why": "x" * 1_000_000}),
    ],
    ids=["no-token", "version-and-token", "version", "essay"],
)
def test_a_refused_operator_is_recorded_as_operator(token: str, said: dict[str, object]):
    """The record names the caller."""
    drain = msgspec.json.decode(COMMAND) | {"command": "drain", "node": "n1"}
    found = Handshake(token, "j").receive(msgspec.json.encode(drain | said))
    assert isinstance(found, Rejection)
    assert found.name == "me"


def test_refusals_are_few_facts_however_many_there_are():
    """A thousand callers per second for a day cause some dozen facts, which count nearly all of them."""
    told: list[CallerRefused] = []
    refusals = Refusals(told.append)
    turned = Rejection(kind="token", reason="wrong token", name="n")
    for second in range(24 * 3600):
        for peer in ("10.0.0.1", f"10.1.0.{second % 200}"):
            refusals.add(turned, peer, seconds(second))
    assert told[0].count == 1
    assert told[0].peer == "10.0.0.1"
    assert 20 < len(told) < 50
    assert sum(fact.count for fact in told) > 2 * 23 * 3600
    assert max(fact.peers for fact in told) == 64


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    ca = trustme.CA()
    return {**written(tmp_path, "a", ca, ca.issue_cert("127.0.0.1", "node.example"))}


def written(folder: Path, name: str, ca: trustme.CA, cert: trustme.LeafCert) -> dict[str, str]:
    paths = {part: folder / f"{name}.{part}" for part in ("ca", "cert", "key")}
    ca.cert_pem.write_to_path(paths["ca"])
    cert.private_key_pem.write_to_path(paths["key"])
    paths["cert"].write_bytes(b"".join(pem.bytes() for pem in cert.cert_chain_pems))
    return {f"FTCORE_TLS_{part.upper()}": str(path) for part, path in paths.items()}


def test_certificates_are_tried_at_the_start(tmp_path: Path, files: dict[str, str]):
    """Expired, another CA, another name, mismatched, missing: one message each; valid ones pass."""
    ca, other = trustme.CA(), trustme.CA()
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    expired = written(
        tmp_path, "old", ca, ca.issue_cert("127.0.0.1", not_before=past, not_after=past.replace(year=2021))
    )
    foreign = {**files, "FTCORE_TLS_CA": written(tmp_path, "b", other, other.issue_cert("x"))["FTCORE_TLS_CA"]}
    good = from_environ(files).tls
    assert good is not None
    good.check("127.0.0.1")
    good.check("")
    named = from_environ({**files, "FTCORE_TLS_NAME": "node.example"}).tls
    assert named is not None
    named.check("10.9.9.9")
    (tmp_path / "nothing").write_text("nothing")
    cases = [
        (expired, "127.0.0.1", "expired.*renew it"),
        (foreign, "127.0.0.1", "not signed by FTCORE_TLS_CA"),
        (files, "10.9.9.9", "is not for 10.9.9.9.*FTCORE_TLS_NAME"),
        ({**files, "FTCORE_TLS_KEY": expired["FTCORE_TLS_KEY"]}, "", "not a certificate and its key"),
        ({**files, "FTCORE_TLS_KEY": ""}, "", "belong together"),
        ({**files, "FTCORE_TLS_CA": ""}, "", "FTCORE_TLS_CA is not"),
        ({**files, "FTCORE_TLS_CA": str(tmp_path / "nothing")}, "", "holds no certificate"),
        ({**files, "FTCORE_TLS_CERT": "/nowhere"}, "", "FTCORE_TLS_CERT: cannot read /nowhere"),
        ({**files, "FTCORE_TLS_MUTUAL": "no"}, "", "expected 1"),
        ({**files, "FTCORE_TLS_MUTUAL": "0"}, "", "admits every caller"),
    ]
    for env, host, words in cases:
        with pytest.raises(UsageError, match=words):
            tls = from_environ(env).tls
            assert tls is not None
            tls.check(host)


def test_certificates_are_renewed_in_place(tmp_path: Path):
    """A renewed pair is used; half of one, during an exchange of files, leaves the old pair in use."""
    ca = trustme.CA()
    tls = from_environ(written(tmp_path, "a", ca, ca.issue_cert("h"))).tls
    assert tls is not None
    before = tls.pem()
    new = written(tmp_path, "b", ca, ca.issue_cert("h"))
    Path(str(tls.cert)).write_bytes(Path(new["FTCORE_TLS_CERT"]).read_bytes())
    assert tls.pem() == before
    Path(str(tls.key)).write_bytes(Path(new["FTCORE_TLS_KEY"]).read_bytes())
    assert tls.pem() == (before[0], *(Path(new[f"FTCORE_TLS_{part}"]).read_bytes() for part in ("CERT", "KEY")))


def test_where_the_token_comes_from(tmp_path: Path):
    """File, variable, or created beside the log, once, private; an unfit token or a shared file is refused."""
    file, own = tmp_path / "file", tmp_path / "new" / "job.db.token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert from_environ({"FTCORE_TOKEN_FILE": str(file)}).token == TOKEN
    assert from_environ({"FTCORE_TOKEN": TOKEN}, own=own, make=True).token == TOKEN
    assert not own.exists()
    assert from_environ({}, own=own).token == ""
    made = from_environ({}, own=own, make=True)
    assert made.token == from_environ({}, own=own, make=True).token
    assert len(made.token) >= 40
    assert made.token not in repr(made)
    assert (own.stat().st_mode & 0o777, own.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [path.name for path in own.parent.iterdir()] == [own.name]
    own.chmod(0o644)
    with pytest.raises(UsageError, match="not private"):
        from_environ({}, own=own)
    file.chmod(0o666)
    for env, words in (
        ({"FTCORE_TOKEN_FILE": str(file)}, "chmod 600"),
        ({"FTCORE_TOKEN_FILE": str(file), "FTCORE_TOKEN": TOKEN}, "both set"),
        ({"FTCORE_TOKEN_FILE": "/nowhere"}, "cannot read /nowhere"),
        ({"FTCORE_TOKEN": "short"}, "16 to 1024.*found 5"),
        ({"FTCORE_TOKEN": "with a\nline break in it"}, "printable"),
    ):
        with pytest.raises(UsageError, match=words) as told:
            from_environ(env)
        assert TOKEN not in str(told.value)


def test_another_user_s_directory_for_sockets_is_not_used(monkeypatch: pytest.MonkeyPatch):
    """Sockets lie only in a directory that this user made and nobody else may enter, and never behind a link; another
    place is taken then, and where there is none, it is refused."""
    folder = tempfile.TemporaryDirectory(dir="/tmp")  # short: it would be passed over otherwise
    path = Path(folder.name)
    store = f"sqlite://{path}"
    own = path / ".run"
    assert paths.master_socket(store).startswith(f"unix:{own}/")
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o755)
    assert paths.socket_dir(store) == Path(f"/var/tmp/ftcore-{os.getuid()}")
    monkeypatch.setattr(paths, "SHARED", ())
    with pytest.raises(UsageError, match="not private to this user"):
        paths.socket_dir(store)
    own.rmdir()
    (path / "real").mkdir(mode=0o700)
    own.symlink_to(path / "real")
    with pytest.raises(UsageError, match="not private to this user"):
        paths.socket_dir(store)
    own.unlink()
    if os.getuid() == 0:
        own.mkdir(mode=0o700)
        os.chown(own, 65534, 65534)
        with pytest.raises(UsageError, match="owner 65534"):
            paths.socket_dir(store)
    folder.cleanup()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_machine_neither_reads_nor_joins(tmp_path: Path):
    """Another user with the log's URL can neither read a job nor join it: one line, exit code 2 or 4."""
    home = tmp_path / "home"
    env = {**os.environ, "XDG_STATE_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    script = tmp_path / "t.py"
    script.write_text("")
    ftrun = [sys.executable, "-m", "ftcore.cli.ftrun", "--job", "j", "--no-preload"]
    mine = subprocess.run([*ftrun, str(script)], env=env, capture_output=True, text=True, timeout=100)
    assert mine.returncode == 0, mine.stderr
    store = home / "ftcore"
    modes = {path.name: path.stat().st_mode & 0o077 for path in [store, *store.rglob("*.db*"), *store.rglob("*.token")]}
    assert "j.db.token" in modes
    assert not any(modes.values()), modes
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    for path in [tmp_path, *tmp_path.parents[:-1]]:
        path.chmod(path.stat().st_mode | 0o011)
    env |= {"XDG_STATE_HOME": str(theirs), "XDG_RUNTIME_DIR": "", "TMPDIR": str(theirs), "HOME": str(theirs)}
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if subprocess.run(
        [*nobody, sys.executable, "-c", "import ftcore.cli.ftrun_job"], env=env, capture_output=True
    ).returncode:
        pytest.skip("nobody else may read this checkout")
    url = ["--store", f"sqlite://{store}"]
    for command in (
        [*ftrun, *url, str(script)],
        [sys.executable, "-m", "ftcore.cli.ftctl", *url, "--job", "j", "events"],
        [sys.executable, "-m", "ftcore.cli.ftctl", *url, "--job", "j", "stop"],
    ):
        done = subprocess.run([*nobody, *command], env=env, capture_output=True, text=True, timeout=100, cwd="/")
        assert done.returncode in (2, 4), done
        assert "Traceback" not in done.stderr
        assert not done.stdout


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"f":"sealed","nonce":"n","proof":"p","body":' + b"[" * 200_000,
        b'{"f":"sealed","nonce":"\xff","proof":"p","body":1}',
        b'{"f":"facts","facts":[{}]}',
        b" " * (HANDSHAKE_BYTES_MAX + 1),
    ],
    ids=["nested", "nested-in-raw", "not-utf-8", "another-frame", "large"],
)
def test_after_a_challenge_only_a_proof_is_decoded(body: bytes, monkeypatch: pytest.MonkeyPatch):
    """Any other frame is refused, and frames of unauthenticated callers are never fully decoded."""
    opening = Handshake("secret", "j")
    opening.receive(frames.encode(CallerHandshake("guess", "j", "n").request))

    def decoded(_: bytes) -> None:
        raise AssertionError("decoded before the proof")

    monkeypatch.setattr(frames, "decode_from_agent", decoded)
    turned = opening.receive(body)
    assert isinstance(turned, Rejection)
    assert turned.kind == "unreadable"


def test_nested_brackets_are_no_frame_where_there_is_no_token_either():
    """They end neither the stream's task nor the master."""
    turned = Handshake("", "j").receive(b'{"f":"hello","x":' + b"[" * 200_000)
    assert isinstance(turned, Rejection)
    assert turned.kind == "unreadable"


@pytest.mark.parametrize("field", ["node", "job", "incarnation", "version"])
def test_a_name_beyond_the_limit_is_refused(field: str):
    """It is refused before the master handles it, and recorded in part; so is an operator's long reason."""
    said = msgspec.json.decode(hello())
    found = Handshake("", "j").receive(msgspec.json.encode(said | {field: "x" * 1_000_000}))
    assert isinstance(found, Rejection)
    assert found.kind == "unreadable"
    assert len(found.reason) + len(found.name) + len(found.version) < 400
    essay = msgspec.json.encode(msgspec.json.decode(COMMAND) | {"why": "x" * 1_000_000})
    assert isinstance(Handshake("", "j").receive(essay), Rejection)
