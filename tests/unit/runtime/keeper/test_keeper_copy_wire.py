"""The protocol of copies: who may send, what counts as received, what the other side is told."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trustme

from ftcore.checkpoint.bandwidth import BandwidthLimit
from ftcore.runtime.keeper import copy_wire
from ftcore.runtime.keeper.config import BuddyAddress, CopyAccess
from ftcore.runtime.keeper.copy_wire import CopyFailed, CopyOffer, CopyOwner
from ftcore.runtime.wire.security import Security

SENDER, RECEIVER = (CopyOwner(job="job", log="log", node=node) for node in ("a", "b"))
DATA = bytes(range(256)) * 20_000
INDEX = b'{"round":1,"step":5}'
OFFER = CopyOffer(local_rank=0, round=1, step=5, index=len(INDEX), data=len(DATA))


def both(send: Callable[[socket.socket], Any], receive: Callable[[socket.socket], Any]) -> list[Any]:
    """Run both sides; returns what each returns or raises."""
    ends, results = socket.socketpair(), [None, None]

    def side(number: int, work: Callable[[socket.socket], Any]) -> None:
        with ends[number] as channel:
            channel.settimeout(30.0)
            try:
                results[number] = work(channel)
            except CopyFailed as error:
                results[number] = str(error)

    threads = [threading.Thread(target=side, args=(number, work)) for number, work in enumerate((send, receive))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def greeting(
    me: CopyOwner = SENDER,
    node: str = "b",
    tokens: tuple[str, str] = ("t" * 16, "t" * 16),
    wards: tuple[str, ...] = ("a",),
) -> list[Any]:
    def send(channel: socket.socket) -> None:
        copy_wire.greet(channel, me, node, tokens[0])
        copy_wire._answer(channel)

    def receive(channel: socket.socket) -> str:
        found = copy_wire.receive_greeting(channel, RECEIVER, wards.__contains__, tokens[1])
        copy_wire.confirm(channel)
        return found

    return both(send, receive)


def test_keepers_of_a_job_know_each_other() -> None:
    """With the job's token, and without one if the job has none."""
    assert greeting() == [None, "a"]
    assert greeting(tokens=("", "")) == [None, "a"]


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ("does not know the job's token", {"tokens": ("t" * 16, "u" * 16)}),
        ("another job", {"me": CopyOwner(job="other", log="log", node="a")}),
        ("another job", {"me": CopyOwner(job="job", log="older", node="a")}),
        ("the keeper of node 'b'", {"node": "c"}),
        ("no copies of node 'a'", {"wards": ()}),
    ],
)
def test_others_are_refused(told: str, options: dict[str, Any]) -> None:
    """The sender learns why; a sender without the token never learns a proof of it that it could use."""
    sender, receiver = greeting(**options)
    assert told in sender
    assert receiver != "a"


def test_a_proof_is_of_one_connection_and_one_side() -> None:
    """A receiver that returns the sender's own nonce has no proof."""
    about = ("job", "log", "a", "b", "1", "2")
    proofs = {
        copy_wire._proof("token", side, names)
        for side in ("sender", "receiver")
        for names in (about, (*about[:4], "2", "1"), ("job", "log", "b", "a", "1", "2"))
    }
    assert len(proofs) == 6


def transfer(*, is_valid: bool = True) -> tuple[Any, Any, bytes]:
    index, data = bytearray(len(INDEX)), bytearray(len(DATA))

    def send(channel: socket.socket) -> None:
        copy_wire.send_copy(channel, OFFER, INDEX, memoryview(DATA), lambda: is_valid, BandwidthLimit(0))

    def receive(channel: socket.socket) -> CopyOffer:
        offer = copy_wire.receive_offer(channel)
        copy_wire.receive_copy(channel, memoryview(index), memoryview(data))
        copy_wire.confirm(channel)
        return offer

    sender, receiver = both(send, receive)
    return sender, receiver, bytes(index + data)


def test_a_shard_arrives_whole() -> None:
    """With its description."""
    assert transfer() == (None, OFFER, INDEX + DATA)


def test_a_shard_that_was_overwritten_while_it_was_sent_does_not_count() -> None:
    """Both sides know it."""
    sender, receiver, _ = transfer(is_valid=False)
    assert "overwrote" in sender and "overwritten" in receiver


def test_a_shard_that_was_cut_off_does_not_count() -> None:
    """The sender ends with less than it announced."""

    def send(channel: socket.socket) -> None:
        copy_wire._send(channel, attrs.asdict(OFFER))
        copy_wire._answer(channel)
        channel.sendall(INDEX + DATA[:1000])

    def receive(channel: socket.socket) -> None:
        copy_wire.receive_offer(channel)
        copy_wire.receive_copy(channel, memoryview(bytearray(len(INDEX))), memoryview(bytearray(len(DATA))))

    assert both(send, receive) == [None, "the connection has ended"]


def test_damage_on_the_way_is_found() -> None:
    """The checksum is that of what was sent."""

    def send(channel: socket.socket) -> Any:
        copy_wire._send(channel, {"local_rank": 0, "round": 1, "step": 5, "index": 0, "data": 4})
        copy_wire._answer(channel)
        channel.sendall(b"abcd")
        copy_wire._send(channel, {"crc": 1})
        return copy_wire._answer(channel)

    def receive(channel: socket.socket) -> None:
        copy_wire.receive_offer(channel)
        copy_wire.receive_copy(channel, memoryview(bytearray()), memoryview(bytearray(4)))

    assert both(send, receive) == ["it does not have its checksum"] * 2


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\4[1]\n", b"\0\0\0\2{}", b"\0\0\0\1{", b""])
def test_a_stranger_is_no_error_of_ours(noise: bytes) -> None:
    """Whatever connects, the receiver has one kind of failure."""

    def receive(channel: socket.socket) -> Any:
        return copy_wire.receive_greeting(channel, RECEIVER, lambda node: True, "")

    _, receiver = both(lambda channel: channel.sendall(noise), receive)
    assert isinstance(receiver, str) and receiver != "a"


def test_a_limit_makes_small_chunks() -> None:
    """So a receiver never waits long for the next one."""
    assert BandwidthLimit(0).unit(1 << 20) == 1 << 20
    assert BandwidthLimit(1 << 20).unit(1 << 20) == (1 << 20) // 10
    assert BandwidthLimit(1).unit(1 << 20) == 4096


def test_the_token_is_in_no_text() -> None:
    """Of the configuration; its message to the keeper has it."""
    access = CopyAccess(token=Security(token="s" * 16).token, ca="ca.pem")
    assert "ssss" not in repr(access) and "ca.pem" in repr(access)
    assert msgspec.to_builtins(access)["token"] == "s" * 16


def pems(folder: Path, ca: trustme.CA, **more: Any) -> CopyAccess:
    """Certificates of a keeper at this address."""
    folder.mkdir()
    cert = ca.issue_cert("127.0.0.1")
    paths = {name: str(folder / name) for name in ("ca", "cert", "key")}
    ca.cert_pem.write_to_path(paths["ca"])
    cert.cert_chain_pems[0].write_to_path(paths["cert"])
    cert.private_key_pem.write_to_path(paths["key"])
    return CopyAccess(token="t" * 16, **paths, **more)


def over_tcp(sender: CopyAccess, receiver: CopyAccess) -> list[Any]:
    """A greeting between two keepers with these certificates."""
    results: list[Any] = []

    def serve(listener: socket.socket) -> None:
        try:
            with copy_wire.accepted(listener.accept()[0], receiver, 30.0) as channel:
                results.append(copy_wire.receive_greeting(channel, RECEIVER, lambda node: True, receiver.token))
                copy_wire.confirm(channel)
        except CopyFailed as error:
            results.append(str(error))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        buddy = BuddyAddress(node="b", address="127.0.0.1", port=listener.getsockname()[1])
        try:
            with copy_wire.connected(buddy, sender, 30.0) as channel:
                copy_wire.greet(channel, SENDER, "b", sender.token)
                results.append(copy_wire._answer(channel))
        except CopyFailed as error:
            results.append(str(error))
        thread.join()
    return results


def test_certificates_of_the_job_encrypt_copies(tmp_path: Path) -> None:
    """A keeper with a certificate of another authority, or without one, gets nothing and gives nothing."""
    ca = trustme.CA()
    good, other = pems(tmp_path / "good", ca), pems(tmp_path / "other", trustme.CA())
    assert over_tcp(good, good) == ["a", {}]
    bare = msgspec.structs.replace(good, cert="", key="")
    plain = CopyAccess(token=good.token)
    for sender in (other, bare, plain):
        assert "a" not in over_tcp(sender, good)
    assert over_tcp(bare, msgspec.structs.replace(good, mutual=False)) == ["a", {}]


def test_a_keeper_that_is_not_there_is_a_failed_copy() -> None:
    """As a timeout is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    buddy = BuddyAddress(node="b", address="127.0.0.1", port=port)
    with pytest.raises(CopyFailed, match="refused"), copy_wire.connected(buddy, CopyAccess(), 1.0):
        pass
