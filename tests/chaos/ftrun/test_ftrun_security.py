"""A job behind locks: etcd with TLS, users and roles; mutual TLS and a token between agents, master and operator."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest
import trustme
from etcd_cluster import Cluster, require_etcd

from ftcore.cli.ctl_lines import summary

TOKEN = "not-to-be-seen-anywhere-0123456789"


class Papers:
    """An authority and what it signs, as files.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        folder.mkdir()
        self.authority.cert_pem.write_to_path(self.ca)

    def leaf(self, name: str, host: str = "127.0.0.1") -> tuple[str, str]:
        """Certificate and key, good for that host."""
        leaf = self.authority.issue_cert(host)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        cert.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(key)
        return str(cert), str(key)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path / "papers")


@pytest.fixture
def locked(tmp_path: Path, papers: Papers) -> Iterator[Cluster]:
    """An etcd that wants TLS with a certificate, and users; ``ours`` may use one job's prefix, ``other`` another's."""
    require_etcd()
    cert, key = papers.leaf("etcd")
    flags = ("--cert-file", cert, "--key-file", key, "--trusted-ca-file", papers.ca, "--client-cert-auth")
    cluster = Cluster(tmp_path / "etcd", flags=("--unsafe-no-fsync", *flags), tls=True).start()
    files = ("--cacert", papers.ca, "--cert", cert, "--key", key)
    for command in (
        "user add root:r",
        "user grant-role root root",
        "role add ours",
        "role grant-permission ours --prefix=true readwrite /team/ftcore/1/job/",
        "user add ours:secret-of-ours",
        "user grant-role ours ours",
        "role add other",
        "role grant-permission other --prefix=true readwrite /team/ftcore/1/elsewhere/",
        "user add other:secret-of-other",
        "user grant-role other other",
        "auth enable",
    ):
        cluster.ctl(*files, *command.split())
    yield cluster
    cluster.stop()


@pytest.mark.timeout(400)  # a dozen processes that each import what ftrun needs
def test_a_job_behind_locks(tmp_path: Path, papers: Papers, locked: Cluster, monkeypatch: pytest.MonkeyPatch):
    """With its own user, certificates and token a job runs; who lacks one of them hears which, and it is recorded."""
    stranger = Papers(tmp_path / "stranger")
    node, foreign = papers.leaf("node"), stranger.leaf("node")
    password, token = tmp_path / "password", tmp_path / "token"
    for path, secret in ((password, "secret-of-ours\n"), (token, TOKEN)):
        path.touch(mode=0o600)
        path.write_text(secret)
    etcd = {"PASSWORD_FILE": str(password), "CA": papers.ca, "CERT": node[0], "KEY": node[1]}
    for name, value in etcd.items():
        monkeypatch.setenv(f"FTCORE_ETCD_{name}", value)  # for this process, which follows the log
    with harness.ftrun(tmp_path, store=f"etcd://ours@{locked.endpoints}/team") as ftrun:
        ftrun.env |= {f"FTCORE_ETCD_{name}": value for name, value in etcd.items()}
        ftrun.env |= {"FTCORE_TLS_CA": papers.ca, "FTCORE_TLS_CERT": node[0], "FTCORE_TLS_KEY": node[1]}
        ftrun.env |= {"FTCORE_TOKEN": TOKEN}
        good = dict(ftrun.env)
        run = ftrun.start("--local-nodes", "2", "--nnodes", "2", "--nproc-per-node", "1")
        ftrun.stepped(1, nodes=2)
        assert not [line for line in ftrun.processes().values() if TOKEN in line or "secret-of" in line]
        ftrun.do(0, "import os; open('environ', 'w').write(str(dict(os.environ)))")
        ftrun.steps_on(0)
        assert TOKEN not in (ftrun.cwd / "environ").read_text()
        heard = [("node0", 1, True), ("node1", 1, True)]
        harness.wait_until(lambda: beats(ftrun) == heard, "the heartbeats of both nodes to tell a step")
        tls = {"FTCORE_TLS_CA": stranger.ca, "FTCORE_TLS_CERT": foreign[0], "FTCORE_TLS_KEY": foreign[1]}
        wrong: list[tuple[str, dict[str, str], int, str]] = [
            ("ours", {"FTCORE_TOKEN": "another-token-0123456789"}, 2, "has another token"),
            ("ours", tls, 2, "cannot be trusted: its certificate is not signed by our CA"),
            ("ours", {"FTCORE_ETCD_CA": stranger.ca}, 3, "cannot be trusted: its certificate is not signed"),
            (
                "other",
                {"FTCORE_ETCD_PASSWORD_FILE": "", "FTCORE_ETCD_PASSWORD": "secret-of-other"},
                2,
                "lacks permission",
            ),
        ]
        for user, change, code, words in wrong:
            ftrun.env = good | change
            ftrun.store = f"etcd://{user}@{locked.endpoints}/team"
            flags = ("--leadership", "never", "--nnodes", "2", "--node-id", "late", "--nproc-per-node", "1")
            late = ftrun.start(*flags, "--local-addr", "127.0.0.1")
            assert (late.end(), words in late.stderr()) == (code, True), (change, late.stderr())
            assert len(late.stderr().splitlines()) < 12, late.stderr()
        ftrun.store = f"etcd://ours@{locked.endpoints}/team"
        ftrun.env = good | {"FTCORE_TOKEN": "another-token-0123456789"}
        refused = ftrun.ftctl("--job", "job", "stop")
        assert (refused.returncode, "has another token" in refused.stderr) == (2, True), refused
        ftrun.env = good
        assert ftrun.ftctl("--job", "job", "stop").returncode == 0
        assert run.end() == 5, run.stderr()
        lines = [summary(event) for event in ftrun.of("caller.refused")]
        assert lines[:1] == [line for line in lines if "late" in line and "token" in line][:1], lines
        assert TOKEN not in ftrun.ftctl("--job", "job", "events", "--format", "json").stdout + run.stderr()


@pytest.mark.timeout(300)
def test_one_name_for_all_and_callers_without_a_certificate(tmp_path: Path, papers: Papers, etcd: Cluster) -> None:
    """The masters' one certificate bears a name of its own; a node and an operator with the authority, that name and
    the token alone take part; who does not know the name, or has no token, is told."""
    cert, key = papers.leaf("all", "masters.example")
    caller = {"FTCORE_TLS_CA": papers.ca, "FTCORE_TLS_NAME": "masters.example", "FTCORE_TOKEN": TOKEN}
    leads = caller | {"FTCORE_TLS_CERT": cert, "FTCORE_TLS_KEY": key, "FTCORE_TLS_MUTUAL": "0"}
    flags = ("--nnodes", "2", "--local-addr", "127.0.0.1")
    with harness.ftrun(tmp_path, etcd.url(uuid.uuid4().hex), {"node_lease_s": 30.0}) as ftrun:
        plain = dict(ftrun.env)
        ftrun.env = plain | leads
        first = ftrun.start(*flags, "--node-id", "a")
        ftrun.wait("node.joined", node="a")
        ftrun.env = plain | caller
        second = ftrun.start("--leadership", "never", *flags, "--node-id", "b")
        ftrun.stepped(1, nodes=2)
        wrong: list[tuple[dict[str, str], int, str]] = [
            ({"FTCORE_TLS_NAME": ""}, 2, "its certificate does not contain the name or address"),
            ({"FTCORE_TOKEN": ""}, 2, "requires a token"),
        ]
        for change, code, words in wrong:
            ftrun.env = plain | caller | change
            late = ftrun.start("--leadership", "never", *flags, "--node-id", "late")
            assert (late.end(), words in late.stderr()) == (code, True), (change, late.stderr())
        ftrun.env = plain | leads | {"FTCORE_TLS_NAME": ""}
        own = ftrun.start(*flags, "--node-id", "late")
        assert own.end() == 2 and "set FTCORE_TLS_NAME to the name in the certificate" in own.stderr()
        ftrun.env = plain | caller
        assert ftrun.ftctl("--job", "job", "stop").returncode == 0
        assert (first.end(), second.end()) == (5, 5)


def beats(ftrun: harness.Ftrun) -> list[tuple[str, int, bool]]:
    """What the master heard of whom: round, and whether a step was made."""
    told = json.loads(ftrun.ftctl("--job", "job", "status", "--nodes", "--format", "json").stdout)
    return [(node["node"], node["round"], bool(node["step"])) for node in told]
