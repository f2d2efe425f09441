"""Encoding of messages, the private descriptor pool, translation of errors."""

import subprocess
import sys

import grpc
import pytest
from grpc import StatusCode

from ftcore.errors import LogFull, LogUnavailable, NotFound, StoreError, UsageError
from ftcore.etcd3 import Compacted, Compare, Config, Put, Range, Relation, Target, Txn, prefix_end, wire
from ftcore.etcd3.client import is_safe
from ftcore.etcd3.schema import message
from ftcore.etcd3.transport import TokenRefused, translate


def test_request_bytes_are_the_protocols():
    """A transaction is encoded as etcd's API reference says, zeros in a comparison's union included."""
    txn = Txn(compare=(Compare(b"k", Target.CREATE, 0),), success=(Put(b"k", b"v", 7),), failure=(Range(b"k"),))
    compare = bytes([0x10, 1, 0x1A, 1]) + b"k" + bytes([0x28, 0])
    put = bytes([0x0A, 1]) + b"k" + bytes([0x12, 1]) + b"v" + bytes([0x18, 7])
    range_ = bytes([0x0A, 1]) + b"k"
    expected = bytes([0x0A, len(compare)]) + compare
    expected += bytes([0x12, len(put) + 2, 0x12, len(put)]) + put
    expected += bytes([0x1A, len(range_) + 2, 0x0A, len(range_)]) + range_
    assert wire.TXN.encode(txn) == expected


@pytest.mark.parametrize(
    ("target", "value", "field"),
    [
        (Target.VERSION, 3, "version"),
        (Target.CREATE, 3, "create_revision"),
        (Target.MOD, 3, "mod_revision"),
        (Target.VALUE, b"3", "value"),
        (Target.LEASE, 3, "lease"),
    ],
)
def test_each_comparison_fills_its_own_field(target: Target, value: int | bytes, field: str):
    """The union of a comparison holds the field of its target."""
    body = wire.TXN.encode(Txn(compare=(Compare(b"k", target, value, Relation.LESS),)))
    (compare,) = message("TxnRequest").FromString(body).compare
    assert compare.WhichOneof("target_union") == field
    assert (getattr(compare, field), compare.target, compare.result) == (value, target, Relation.LESS)


def test_unknown_fields_of_newer_servers_are_skipped():
    """Unknown fields of an answer are skipped."""
    newer = message("StatusResponse")(version="3.9.0").SerializeToString() + bytes([0xF8, 0x07, 1])
    assert wire.STATUS.decode(newer).version == "3.9.0"


def test_private_pool_lives_beside_another_user_of_the_same_names():
    """A process whose default pool holds a different ``etcdserverpb`` can use ours, whichever comes first."""
    other = """
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(name="ftcore/etcd.proto", package="etcdserverpb", syntax="proto3")
file.message_type.add(name="RangeRequest").field.add(name="other", number=1, type=5, label=1)
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
assert descriptor_pool.Default().FindMessageTypeByName("etcdserverpb.RangeRequest").fields_by_name.keys() == ["other"]
"""
    ours = "from ftcore.etcd3 import wire, Range; assert wire.RANGE.encode(Range(b'k')) == bytes([10, 1, 107])\n"
    for program in (other + ours, ours + other):
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_prefix_end_bounds_the_prefix():
    """The end of a prefix's range is the next key after all that start with it."""
    assert prefix_end(b"/a/") == b"/a0"


@pytest.mark.parametrize(
    ("code", "text", "meaning"),
    [
        (StatusCode.UNAVAILABLE, "failed to connect", LogUnavailable),
        (StatusCode.DEADLINE_EXCEEDED, "", LogUnavailable),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", LogFull),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", LogUnavailable),
        (StatusCode.RESOURCE_EXHAUSTED, "grpc: received message larger than max", ValueError),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", ValueError),
        (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
        (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", NotFound),
        (StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", TokenRefused),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", TokenRefused),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password", UsageError),
        (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", StoreError),
        (StatusCode.UNIMPLEMENTED, "unknown service", StoreError),
    ],
)
def test_meaning_of_errors(code: grpc.StatusCode, text: str, meaning: type[Exception]):
    """Each error is translated to one class, and the message has the endpoint."""
    error = translate(code, text, "h:1", Config(endpoints=("h:1",), user="u", password="p"))
    assert type(error) is meaning
    assert "h:1" in str(error)


def test_missing_user_is_reported():
    """Without a user, a refused token is the user's error."""
    error = translate(StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", "h:1", Config(endpoints=("h:1",)))
    assert type(error) is UsageError


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.4.44", False),
        ("3.5.32", False),
        ("3.5.33", True),
        ("3.6.13", False),
        ("3.7.1", True),
        ("3.8.0", True),
        ("4.0.0", True),
        ("?", False),
    ],
)
def test_versions_with_known_bugs(version: str, safe: bool):
    """A release below its line's safe patch is not safe; a newer line is."""
    assert is_safe(version) is safe
