"""The client against a real etcd."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from etcd_cluster import Cluster, Proxy, free_ports, require_etcd, run

import ftcore.etcd3.client
from ftcore.errors import LogUnavailable, NotFound, StoreError, UsageError
from ftcore.etcd3 import (
    Client,
    Compacted,
    Compare,
    Config,
    DeleteAnswer,
    DeleteRange,
    LeaseKeeper,
    Put,
    PutAnswer,
    Range,
    Relation,
    SortOrder,
    Target,
    Txn,
    Watch,
    WatchBatch,
    WatchOpen,
    now_s,
    prefix_end,
)

pytestmark = pytest.mark.etcd


@asynccontextmanager
async def connected(*endpoints: str, **options: str) -> AsyncIterator[Client]:
    client = Client(Config(endpoints=endpoints, **options))
    try:
        yield client
    finally:
        await client.close()


async def next_events(watch: Watch) -> WatchBatch:
    while True:
        batch = await watch.read(30)
        assert batch is not None
        if batch.events:
            return batch


def test_range_reads_pages_and_the_past(etcd: Cluster):
    """A range is bounded by end, limit, order and revision."""

    async def body() -> None:
        async with connected(etcd.endpoints) as client:
            for n in range(3):
                answer = await client.put(Put(b"/range/%d" % n, b"v%d" % n))
            await client.put(Put(b"/range/0", b"new"))
            everything = Range(b"/range/", prefix_end(b"/range/"))
            assert [kv.value for kv in (await client.range(everything)).kvs] == [b"new", b"v1", b"v2"]
            past = await client.range(Range(b"/range/", b"/range0", limit=2, revision=answer.revision))
            assert [kv.value for kv in past.kvs] == [b"v0", b"v1"]
            assert past.more
            last = await client.range(
                Range(b"/range/", b"/range0", limit=1, order=SortOrder.DESCENDING, keys_only=True)
            )
            assert last.first is not None and (last.first.key, last.first.value) == (b"/range/2", b"")
            assert (await client.delete(DeleteRange(b"/range/", b"/range0"))).deleted == 3
            assert (await client.range(everything)).first is None

    run(body())


def test_transaction_compares_everything(etcd: Cluster):
    """A transaction executes the branch of its comparisons, and answers each operation."""

    async def body() -> None:
        async with connected(etcd.endpoints) as client:
            lease = await client.lease_grant(60)
            first = await client.put(Put(b"/txn", b"a", lease.id))
            second = await client.put(Put(b"/txn", b"b", lease.id))
            holds = (
                Compare(b"/txn", Target.VERSION, 2),
                Compare(b"/txn", Target.CREATE, first.revision),
                Compare(b"/txn", Target.MOD, second.revision),
                Compare(b"/txn", Target.MOD, second.revision + 1, Relation.LESS),
                Compare(b"/txn", Target.VALUE, b"a", Relation.GREATER),
                Compare(b"/txn", Target.LEASE, lease.id),
                Compare(b"/none", Target.CREATE, 0),
            )
            ops = (Range(b"/txn"), Put(b"/txn2", b"x"), DeleteRange(b"/txn"))
            done = await client.txn(Txn(compare=holds, success=ops))
            assert done.succeeded and done.range(0).kvs[0].lease == lease.id
            assert done.answers[1:] == (
                PutAnswer(revision=done.revision),
                DeleteAnswer(revision=done.revision, deleted=1),
            )
            refused = await client.txn(Txn(compare=holds, failure=(Range(b"/txn2"),)))
            assert not refused.succeeded and refused.range(0).kvs[0].value == b"x"

    run(body())


def test_too_large_is_no_fault_of_the_store(etcd: Cluster):
    """A request over the server's limit is a ``ValueError``, below and above gRPC's own limit."""

    async def body() -> None:
        async with connected(etcd.endpoints) as client:
            for size in (1_600_000, 5_000_000):
                with pytest.raises(ValueError, match="larg"):
                    await client.put(Put(b"/large", bytes(size)))

    run(body())


def test_compacted_revision_is_typed(own_etcd: Cluster):
    """Reading or watching from a compacted revision raises ``Compacted`` with the oldest revision left."""

    async def body() -> None:
        async with connected(own_etcd.endpoints) as client:
            old = (await client.put(Put(b"/c", b"1"))).revision
            new = (await client.put(Put(b"/c", b"2"))).revision
            await client.compact(new)
            with pytest.raises(Compacted):
                await client.range(Range(b"/c", revision=old))
            watch = await client.watch(WatchOpen(key=b"/c", start_revision=old))
            with pytest.raises(Compacted) as caught:
                await next_events(watch)
            assert caught.value.revision == new
            watch.cancel()

    run(body())


def test_watch_gives_changes_in_order_and_filters(etcd: Cluster):
    """A watch from a past revision returns all later changes of the requested kinds."""

    async def body() -> None:
        async with connected(etcd.endpoints) as client:
            start = (await client.put(Put(b"/w/0", b"0"))).revision
            both = await client.watch(WatchOpen(key=b"/w/", end=b"/w0", start_revision=start))
            puts = await client.watch(WatchOpen(key=b"/w/", end=b"/w0", start_revision=start, deletes=False))
            await client.delete(DeleteRange(b"/w/0"))
            await client.put(Put(b"/w/1", b"1"))
            seen: list[tuple[bytes, bool]] = []
            while len(seen) < 3:
                seen += [(event.kv.key, event.deleted) for event in (await next_events(both)).events]
            assert seen == [(b"/w/0", False), (b"/w/0", True), (b"/w/1", False)]
            kept: list[bytes] = []
            while len(kept) < 2:
                kept += [event.kv.value for event in (await next_events(puts)).events]
            assert kept == [b"0", b"1"]
            assert await puts.read(0.01) is None
            both.cancel()
            puts.cancel()

    run(body())


def test_cut_watch_says_so(etcd: Cluster):
    """A watch raises when its connection is reset; a new one can be opened."""

    async def body() -> None:
        async with Proxy(etcd.members[0].port) as proxy, connected(f"127.0.0.1:{proxy.port}") as client:
            watch = await client.watch(WatchOpen(key=b"/cut"))
            created = await watch.read(30)
            assert created is not None and created.created
            proxy.cut()
            with pytest.raises(LogUnavailable):
                await next_events(watch)
            with contextlib.suppress(LogUnavailable):  # the next call may still go into the broken pipe
                await client.range(Range(b"/cut"))
            again = await client.watch(WatchOpen(key=b"/cut", start_revision=created.revision + 1))
            await client.put(Put(b"/cut", b"x"))
            assert (await next_events(again)).events[0].kv.value == b"x"
            again.cancel()

    run(body())


def test_no_server():
    """A read of a server that does not run raises ``LogUnavailable`` with its address."""

    async def body() -> None:
        (port,) = free_ports(1)
        async with connected(f"127.0.0.1:{port}") as client:
            with pytest.raises(LogUnavailable, match=str(port)):
                await client.range(Range(b"x"), timeout_s=0.5)

    run(body())


def test_another_protocol():
    """A port of another protocol raises an error."""

    async def body() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, connected(f"127.0.0.1:{port}") as client:
            with pytest.raises(LogUnavailable):
                await client.range(Range(b"x"), timeout_s=0.5)

    run(body())


def test_reads_move_to_a_living_endpoint_and_writes_are_sent_once(etcd: Cluster):
    """With the first endpoint dead a read succeeds at the second; a write fails, once, and the next one succeeds."""

    async def body() -> None:
        (dead,) = free_ports(1)
        endpoints = (f"127.0.0.1:{dead}", etcd.endpoints)
        async with connected(*endpoints) as client:
            assert (await client.range(Range(b"/none"))).first is None
            assert client.endpoint == etcd.endpoints
        async with connected(*endpoints) as client:
            with pytest.raises(LogUnavailable):
                await client.put(Put(b"/once", b"x"))
            assert (await client.range(Range(b"/once"))).first is None
            await client.put(Put(b"/once", b"x"))

    run(body())


def test_frozen_endpoint_is_left(own_etcd: Cluster, etcd: Cluster):
    """A read does not wait for a server that accepts connections but never answers, if there is another."""

    async def body() -> None:
        async with connected(own_etcd.endpoints, etcd.endpoints) as client:
            own_etcd.members[0].freeze()
            await client.range(Range(b"/none"))
            assert client.endpoint == etcd.endpoints

    run(body())


@asynccontextmanager
async def kept_lease(client: Client, key: bytes, ttl_s: int) -> AsyncIterator[tuple[int, "asyncio.Future[str]"]]:
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asked = now_s()
    lease = await client.lease_grant(ttl_s)
    await client.put(Put(key, b"", lease.id))
    keeper = LeaseKeeper(
        client.config,
        lease,
        asked_s=asked,
        renew_s=0.2,
        key=key,
        endpoint=client.endpoint,
        on_lost=lost.set_result,
    )
    keeper.start()
    try:
        yield lease.id, lost
    finally:
        await keeper.stop()


def test_kept_lease_outlives_its_ttl_while_the_loop_is_busy(own_etcd: Cluster):
    """The keeper's thread renews a lease whose TTL passes several times while the event loop does not run."""

    async def body() -> None:
        async with connected(own_etcd.endpoints) as client, kept_lease(client, b"/kept", 1) as (_, lost):
            busy_until = now_s() + 3
            while now_s() < busy_until:
                pass
            assert (await client.range(Range(b"/kept"))).first is not None
            assert not lost.done()

    run(body())


def test_keeper_reports_a_lost_lease(etcd: Cluster):
    """A lease that was revoked, and a key that was deleted, are reported."""

    async def body() -> None:
        async with connected(etcd.endpoints) as client:
            async with kept_lease(client, b"/revoked", 60) as (lease, lost):
                await client.lease_revoke(lease)
                assert await lost == "the lease has expired"
                with pytest.raises(NotFound):
                    await client.lease_revoke(lease)
            async with kept_lease(client, b"/taken", 60) as (_, lost):
                await client.delete(DeleteRange(b"/taken"))
                assert await lost == "the leader's key was deleted or replaced"

    run(body())


def test_keeper_reports_a_failed_renewal(own_etcd: Cluster):
    """If the server does not answer, the lease is lost."""

    async def body() -> None:
        async with connected(own_etcd.endpoints) as client, kept_lease(client, b"/silent", 2) as (_, lost):
            own_etcd.members[0].freeze()
            assert (await lost).startswith("not renewed for ")

    run(body())


def test_user_and_password_survive_a_restart(own_etcd: Cluster, monkeypatch: pytest.MonkeyPatch):
    """A client logs in, and again by itself when a restarted server has forgotten its token."""
    for command in ("user add root:r", "user grant-role root root", "role add ours", "user add me:secret"):
        own_etcd.ctl(*command.split())
    own_etcd.ctl("role", "grant-permission", "ours", "--prefix=true", "readwrite", "/mine/")
    own_etcd.ctl("user", "grant-role", "me", "ours")
    own_etcd.ctl("auth", "enable")

    async def body() -> None:
        monkeypatch.setenv("FTCORE_ETCD_PASSWORD", "secret")
        client = Client(Config.from_url(f"etcd://me@{own_etcd.endpoints}"))
        await client.put(Put(b"/mine/a", b"1"))
        with pytest.raises(StoreError, match="'me' lacks permission"):
            await client.put(Put(b"/other", b"1"))
        async with kept_lease(client, b"/mine/kept", 60) as (_, lost):
            own_etcd.members[0].kill()
            own_etcd.members[0].start()
            # The read waits for the server; the write that follows finds the new token.
            assert (await client.range(Range(b"/mine/a"))).first is not None
            await client.put(Put(b"/mine/a", b"2"))
            assert not lost.done()
        await client.close()
        for user, password in (("me", "wrong"), ("nobody", "secret")):
            async with connected(own_etcd.endpoints, user=user, password=password) as stranger:
                with pytest.raises(UsageError, match="FTCORE_ETCD_PASSWORD"):
                    await stranger.range(Range(b"/mine/a"))
        async with connected(own_etcd.endpoints) as nameless:
            with pytest.raises(UsageError, match="requires a user"):
                await nameless.range(Range(b"/mine/a"))

    run(body())


def issue(tmp_path: Path) -> tuple[str, str, str]:
    """Files of a new authority, and of a certificate of its own for everybody; those of an older one are replaced."""
    ca, key, cert, request = (str(tmp_path / name) for name in ("ca.pem", "key.pem", "cert.pem", "request.pem"))
    extensions = tmp_path / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    new = ("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ftcore")
    sign = ("openssl", "x509", "-req", "-CA", ca, "-CAkey", ca + ".key", "-CAcreateserial", "-days", "1")
    for command in (
        (*new, "-x509", "-days", "1", "-keyout", ca + ".key", "-out", ca),
        (*new, "-keyout", key, "-out", request),
        (*sign, "-in", request, "-extfile", str(extensions), "-out", cert),
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return ca, key, cert


def test_tls_with_a_client_certificate(tmp_path: Path):
    """With a CA and a client certificate the connection is encrypted; without them it is not made. When all of them
    have been exchanged and the server is back with its own, the client goes on with those that are there now."""
    require_etcd()
    ca, key, cert = issue(tmp_path)
    flags = ("--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth")
    cluster = Cluster(tmp_path / "etcd", flags=flags, tls=True).start()

    async def body() -> None:
        url = f"etcd://{cluster.endpoints}/?ca={ca}&cert={cert}&key={key}"
        client = Client(Config.from_url(url))
        await client.range(Range(b"x"))
        async with kept_lease(client, b"/tls", 60) as (_, lost):
            await asyncio.wait({lost}, timeout=0.5)
            assert not lost.done()
        cluster.members[0].kill()
        issue(tmp_path)
        cluster.members[0].start()
        cluster.members[0].wait_listening()
        await client.range(Range(b"x"), timeout_s=60.0)
        await client.put(Put(b"x", b"1"))
        await client.close()
        async with connected(cluster.endpoints) as plain:
            with pytest.raises(LogUnavailable):
                await plain.range(Range(b"x"), timeout_s=0.5)

    try:
        run(body())
    finally:
        cluster.stop()


def test_old_server_is_warned_about_once(etcd: Cluster, monkeypatch: pytest.MonkeyPatch):
    """A server with known bugs is named in one warning per process, with the versions to use instead."""
    warnings: list[dict[str, str]] = []

    class Log:
        def warning(self, event: str, **fields: str) -> None:
            warnings.append({"event": event, **fields})

    monkeypatch.setattr(ftcore.etcd3.client, "_log", Log())
    monkeypatch.setattr(ftcore.etcd3.client, "_warned", set())
    monkeypatch.setattr(ftcore.etcd3.client, "SAFE_VERSIONS", {(99, 0): 1})

    async def body() -> None:
        for _ in range(2):
            async with connected(etcd.endpoints) as client:
                await client.warn_if_old()
                assert (await client.status()).db_size > 0
                assert await client.alarms() == ()

    run(body())
    (warning,) = warnings
    assert "update it" in warning["event"] and warning["use_at_least"] == "99.0.1"
