"""A minimal client of etcd's v3 API on ``grpc.aio``, for the event log.

Why not a client from the package index: ``docs/decisions/etcd-client.md``.

- A write (``put``, ``txn``, ``lease_grant``) is sent once. If its answer is lost, its outcome is unknown and the caller
  must find out. Reads are retried on the next endpoint until their deadline.
- A watch never resumes by itself: after an interruption, the reader reads the range again and opens a new watch.
- Every call has a deadline. Every error is one of ``ftcore.errors``, except ``Compacted``, which ``logs`` handles.
- etcd's messages are in a private descriptor pool, to coexist with other etcd clients in the same process.
"""

from ftcore.etcd3.client import Client, Watch
from ftcore.etcd3.config import Config
from ftcore.etcd3.keeper import LeaseKeeper, now_s, whole_ttl
from ftcore.etcd3.messages import (
    Compare,
    DeleteAnswer,
    DeleteRange,
    KeyValue,
    Lease,
    Op,
    Put,
    PutAnswer,
    Range,
    RangeAnswer,
    Relation,
    SortOrder,
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
    "SortOrder",
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
