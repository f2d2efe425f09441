"""A thin client of etcd's v3 API on ``grpc.aio``: what the event log needs, and no more.

Why not a client from the package index: ``docs/decisions/etcd-client.md``.

House rules:

- A write (``put``, ``txn``, ``lease_grant``) is sent once. When its answer is lost its outcome is unknown, and only
  who knows what it meant can find out. Reads are repeated on the next endpoint until their deadline.
- A watch never resumes by itself. Whoever reads it reads the range again after any break, then watches from there.
- Every call has a deadline. Every error is one of ``ftcore.errors``; ``Compacted`` is the one addition, for ``logs``.
- etcd's messages live in a private descriptor pool, so another etcd client in the same process is not disturbed.
"""

from ftcore.etcd3.client import Client, Watch
from ftcore.etcd3.config import Config
from ftcore.etcd3.keeper import LeaseKeeper, now_s, whole_ttl
from ftcore.etcd3.messages import (
    Alarm,
    Compare,
    DeleteAnswer,
    DeleteRange,
    KeyValue,
    Lease,
    Op,
    Order,
    Put,
    PutAnswer,
    Range,
    RangeAnswer,
    Relation,
    Status,
    Target,
    Txn,
    TxnAnswer,
    WatchBatch,
    WatchEvent,
    WatchOpen,
    prefix_end,
)
from ftcore.etcd3.transport import Compacted

__all__ = [
    "Alarm",
    "Client",
    "Compacted",
    "Compare",
    "Config",
    "DeleteAnswer",
    "DeleteRange",
    "KeyValue",
    "Lease",
    "LeaseKeeper",
    "Op",
    "Order",
    "Put",
    "PutAnswer",
    "Range",
    "RangeAnswer",
    "Relation",
    "Status",
    "Target",
    "Txn",
    "TxnAnswer",
    "Watch",
    "WatchBatch",
    "WatchEvent",
    "WatchOpen",
    "now_s",
    "prefix_end",
    "whole_ttl",
]
