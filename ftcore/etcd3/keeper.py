"""A lease kept alive by a thread, so that a busy event loop does not lose it.

House rules:

- The lease counts as held until ``ttl * 2/3`` after the *sending* of the last renewal that was acknowledged, by a clock
  that goes on while the machine sleeps. The thread says so in time even when the server is silent.
- A renewal is acknowledged when the server renewed the lease *and* the key that it guards is still the same one.
- Once lost, the thread renews no more and ends.
- An event loop that does not run at all for ``LOOP_STUCK_S`` counts as dead: its process must not hold a role for ever.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import structlog

from ftcore.errors import FtcoreError, LogUnavailable
from ftcore.etcd3 import wire
from ftcore.etcd3.config import Config
from ftcore.etcd3.messages import Lease, Login, Range
from ftcore.etcd3.transport import OPTIONS, TokenRefused, credentials, translate

LOOP_STUCK_S = 60.0
"""Longer than any fold; a process that is stuck for longer is deposed."""

_log = structlog.get_logger(__name__)


def now_s() -> float:
    """Seconds since boot, sleep of the machine included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseKeeper:
    """Keeps a lease alive from ``start`` until ``stop`` or its loss.

    Args:
        config: how to reach etcd.
        lease: the lease as granted.
        asked_s: ``now_s()`` before it was asked for.
        renew_s: seconds between renewals.
        key: the key that the lease guards.
        endpoint: the endpoint to begin with; the others follow when it fails.
        on_lost: called once in the event loop, with the reason, when the lease can no longer be shown to be held.
    """

    def __init__(
        self,
        config: Config,
        lease: Lease,
        *,
        asked_s: float,
        renew_s: float,
        key: bytes,
        endpoint: str,
        on_lost: Callable[[str], None],
    ) -> None:
        self._config = config
        self._lease = lease
        self._renew_s = renew_s
        self._key = key
        self._on_lost = on_lost
        self._held_s = lease.ttl_s * 2 / 3
        self._acked = self._loop_seen = asked_s
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._endpoint = config.endpoints.index(endpoint)
        self._channel: grpc.Channel | None = None
        self._token = ""
        self._thread = threading.Thread(target=self._run, name=f"etcd-lease-{lease.id:x}", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    async def stop(self) -> None:
        """Renew no more, without a word to ``on_lost``; the lease itself stands until it expires or is revoked."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            reason = self._keep()
        except Exception as error:
            # A thread that dies silently would leave a master that believes in its lease.
            _log.exception("etcd.lease_keeper_failed")
            reason = f"the thread that renews the lease failed: {error!r}"
        finally:
            self._disconnect()
        if reason and not self._stop.is_set():
            # RuntimeError: the loop is closed, nobody is left to be told.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_lost, reason)

    def _keep(self) -> str:
        """Renew until stopped (returns nothing) or lost (returns the reason)."""
        failure = ""
        while not self._stop.wait(self._renew_s if not failure else min(0.1, self._renew_s)):
            if not self._loop_lives():
                return f"the event loop has not run for {LOOP_STUCK_S:.0f} s"
            left = self._acked + self._held_s - now_s()
            if left <= 0:
                return f"not renewed for {self._held_s:.1f} s" + (f": {failure}" if failure else "")
            sent = now_s()
            try:
                # Half of the period, so that a second endpoint can be tried before the time is up.
                lost = self._renew(min(left, max(self._renew_s / 2, 0.3)))
            except LogUnavailable as error:
                failure = str(error)
                self._disconnect()
                self._endpoint = (self._endpoint + 1) % len(self._config.endpoints)
            except TokenRefused as error:
                failure, self._token = str(error), ""
            except FtcoreError as error:
                failure = str(error)
            else:
                if lost:
                    return lost
                self._acked, failure = sent, ""
        return ""

    def _renew(self, timeout_s: float) -> str:
        deadline = now_s() + timeout_s
        lease = self._call(wire.KEEP_ALIVE, self._lease.id, timeout_s)
        if lease.ttl_s <= 0:
            return "the lease has expired"
        leader = self._call(wire.RANGE, Range(self._key), max(0.01, deadline - now_s())).first
        if leader is None or leader.lease != self._lease.id:
            return "the leader's key was taken away"
        return ""

    def _call(self, method: wire.Method[Any, Any], request: Any, timeout_s: float) -> Any:
        endpoint = self._config.endpoints[self._endpoint]
        if self._channel is None:
            tls = credentials(self._config)
            self._channel = (
                grpc.insecure_channel(endpoint, options=OPTIONS)
                if tls is None
                else grpc.secure_channel(endpoint, tls, options=OPTIONS)
            )
        if self._config.user and not self._token and method is not wire.LOGIN:
            login = Login(user=self._config.user, password=self._config.password)
            self._token = self._call(wire.LOGIN, login, timeout_s)
        metadata = (("token", self._token),) if self._token else ()
        try:
            if method is wire.KEEP_ALIVE:
                # A stream by its protocol; one message each way is all that is wanted.
                stream: Any = self._channel.stream_stream(
                    method.path, request_serializer=method.encode, response_deserializer=method.decode
                )(iter([request]), timeout=timeout_s, metadata=metadata)
                return next(stream)
            return self._channel.unary_unary(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )(request, timeout=timeout_s, metadata=metadata)
        except StopIteration:
            raise LogUnavailable(f"etcd at {endpoint} ended the renewal without an answer") from None
        except grpc.RpcError as error:
            raise translate(error.code(), error.details() or "", endpoint, self._config) from error

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _loop_lives(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._seen)
        except RuntimeError:
            return False
        return now_s() - self._loop_seen < LOOP_STUCK_S

    def _seen(self) -> None:
        self._loop_seen = now_s()


def whole_ttl(seconds: float) -> int:
    """A TTL in the whole seconds that etcd takes, not shorter than asked for."""
    return math.ceil(seconds)
