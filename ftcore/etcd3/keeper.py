"""Renews a lease in a thread, so that a busy event loop does not lose it.

- The lease counts as held until ``ttl * 2/3`` after the last acknowledged renewal was *sent*, by a clock that includes
  suspension. The thread reports the loss in time even if no server answers.
- Members are asked in turn, the next one as soon as one is slow, and the first answer counts. So neither a frozen
  member nor a lossy network loses the lease. A slow call keeps its connection; after two slow calls in a row the
  connection is replaced.
- A renewal succeeds if the server renewed the lease *and* the guarded key is unchanged.
- After the loss, the thread ends.
- An event loop that does not run for ``LOOP_STUCK_S`` counts as dead, so that its process does not lead forever.
"""

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import structlog

from ftcore.errors import FtcoreError, LogUnavailable
from ftcore.etcd3 import wire
from ftcore.etcd3.config import Config
from ftcore.etcd3.messages import Lease, Login, Range
from ftcore.etcd3.transport import OPTIONS, TokenRefused, credentials, pem, translate

LOOP_STUCK_S = 60.0
"""Longer than any fold; a process stuck for longer loses its lease."""

_log = structlog.get_logger(__name__)


def now_s() -> float:
    """Seconds since boot, including suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _MemberReply(NamedTuple):
    """Result of a renewal at one member.

    Args:
        endpoint: the member.
        sent_s: when the request was sent.
        lost: why the lease is lost; empty: it was renewed.
        failure: why the outcome is unknown; empty: it is known.
    """

    endpoint: str
    sent_s: float
    lost: str
    failure: str


class LeaseKeeper:
    """Keeps a lease alive from ``start`` until ``stop`` or its loss.

    Args:
        config: connection parameters.
        lease: the lease as granted.
        asked_s: ``now_s()`` before the lease was requested.
        renew_s: seconds between renewals.
        key: the key on the lease.
        endpoint: the first endpoint to ask.
        on_lost: called once in the event loop, with the reason, when the lease is lost or can no longer be proven.
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
        self._first = config.endpoints.index(endpoint)
        self._channels: dict[str, grpc.Channel] = {}
        self._slow_calls: dict[str, int] = {}
        self._token = ""
        self._thread = threading.Thread(target=self._run, name=f"etcd-lease-{lease.id:x}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Stop renewing, without calling ``on_lost``; the lease stays until it expires or is revoked."""
        self._stop.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            reason = self._keep()
        except Exception as error:
            # If the thread died silently, the master would continue without a lease.
            _log.exception("etcd.lease_keeper_failed")
            reason = f"the thread that renews the lease failed: {error!r}"
        finally:
            for endpoint in list(self._channels):
                self._disconnect(endpoint)
        if reason and not self._stop.is_set():
            # RuntimeError: the loop is closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_lost, reason)

    def _keep(self) -> str:
        """Renew until stopped (returns an empty string) or lost (returns the reason)."""
        failure = ""
        while not self._stop.wait(self._renew_s if not failure else min(0.1, self._renew_s)):
            if not self._loop_runs():
                return f"the event loop has not run for {LOOP_STUCK_S:.0f} s"
            left = self._acked + self._held_s - now_s()
            if left <= 0:
                return f"not renewed for {self._held_s:.1f} s" + (f": {failure}" if failure else "")
            lost, failure = self._attempt(left)
            if lost:
                return lost
        return ""

    def _attempt(self, left_s: float) -> tuple[str, str]:
        """Renew once, at any member; returns why the lease is lost and why the renewal failed, empty if it did not."""
        answers: queue.SimpleQueue[_MemberReply] = queue.SimpleQueue()
        deadline = now_s() + left_s
        patience_s = max(self._renew_s / 2, 0.3)
        endpoints = self._config.endpoints[self._first :] + self._config.endpoints[: self._first]
        failure, waiting = "", 0
        for last, endpoint in enumerate(endpoints, start=1 - len(endpoints)):
            request = threading.Thread(target=self._renew_at, args=(endpoint, left_s, answers), daemon=True)
            request.start()
            waiting += 1
            until = deadline if last == 0 else min(deadline, now_s() + patience_s)
            while waiting:
                try:
                    answer = answers.get(timeout=max(0.001, until - now_s()))
                except queue.Empty:
                    failure = failure or f"etcd at {endpoint} does not answer"
                    break
                waiting -= 1
                if not answer.failure:
                    self._first = self._config.endpoints.index(answer.endpoint)
                    self._acked = max(self._acked, answer.sent_s)
                    return answer.lost, ""
                failure = answer.failure
        return "", failure

    def _renew_at(self, endpoint: str, timeout_s: float, answers: "queue.SimpleQueue[_MemberReply]") -> None:
        """Renew at one member and put the result into ``answers``."""
        sent, lost, failure = now_s(), "", ""
        try:
            lost = self._renew(endpoint, timeout_s)
            self._slow_calls[endpoint] = 0
        except LogUnavailable as error:
            failure = str(error)
            self._slow_calls[endpoint] = self._slow_calls.get(endpoint, 0) + 1
            if self._slow_calls[endpoint] > 1 or grpc.StatusCode.DEADLINE_EXCEEDED.name not in failure:
                self._disconnect(endpoint)
        except TokenRefused as error:
            failure, self._token = str(error), ""
        except FtcoreError as error:
            failure = str(error)
        except ValueError as error:  # the channel was closed meanwhile
            failure = f"etcd at {endpoint}: {error}"
        except Exception as error:
            _log.exception("etcd.lease_keeper_failed")
            failure = repr(error)
        answers.put(_MemberReply(endpoint, sent, lost, failure))

    def _renew(self, endpoint: str, timeout_s: float) -> str:
        deadline = now_s() + timeout_s
        lease = self._call(endpoint, wire.KEEP_ALIVE, self._lease.id, timeout_s)
        if lease.ttl_s <= 0:
            return "the lease has expired"
        leader = self._call(endpoint, wire.RANGE, Range(self._key), max(0.01, deadline - now_s())).first
        if leader is None or leader.lease != self._lease.id:
            return "the leader's key was deleted or replaced"
        return ""

    def _call(self, endpoint: str, method: wire.Method[Any, Any], request: Any, timeout_s: float) -> Any:
        channel = self._channels.get(endpoint)
        if channel is None:
            tls = credentials(self._config, pem(self._config))
            channel = self._channels[endpoint] = (
                grpc.insecure_channel(endpoint, options=OPTIONS)
                if tls is None
                else grpc.secure_channel(endpoint, tls, options=OPTIONS)
            )
        if self._config.user and not self._token and method is not wire.LOGIN:
            login = Login(user=self._config.user, password=self._config.password)
            self._token = self._call(endpoint, wire.LOGIN, login, timeout_s)
        metadata = (("token", self._token),) if self._token else ()
        try:
            if method is wire.KEEP_ALIVE:
                # The method is a stream; one message each way is enough.
                stream: Any = channel.stream_stream(
                    method.path, request_serializer=method.encode, response_deserializer=method.decode
                )(iter([request]), timeout=timeout_s, metadata=metadata)
                return next(stream)
            return channel.unary_unary(
                method.path, request_serializer=method.encode, response_deserializer=method.decode
            )(request, timeout=timeout_s, metadata=metadata)
        except StopIteration:
            raise LogUnavailable(f"etcd at {endpoint} ended the renewal without an answer") from None
        except grpc.RpcError as error:
            raise translate(error.code(), error.details() or "", endpoint, self._config) from error

    def _disconnect(self, endpoint: str) -> None:
        channel = self._channels.pop(endpoint, None)
        if channel is not None:
            channel.close()

    def _loop_runs(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._record_loop_run)
        except RuntimeError:
            return False
        return now_s() - self._loop_seen < LOOP_STUCK_S

    def _record_loop_run(self) -> None:
        self._loop_seen = now_s()


def whole_ttl(seconds: float) -> int:
    """Round a TTL up to whole seconds, as etcd requires."""
    return math.ceil(seconds)
