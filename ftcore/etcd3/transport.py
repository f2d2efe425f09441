"""Channels to etcd and the meaning of its errors.

House rules: what a failed call means is decided here alone, by gRPC's code and, where etcd uses one code for two
meanings, by the text of the message. When in doubt the outcome is unknown: ``LogUnavailable``.
"""

from pathlib import Path

import grpc

from ftcore.errors import FtcoreError, LogFull, LogUnavailable, NotFound, StoreError, UsageError
from ftcore.etcd3.config import Config
from ftcore.tls import trouble

OPTIONS: tuple[tuple[str, int], ...] = (
    # The default of 4 MB is too small for a page of large values.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A proxy for the web is no way to a store.
    ("grpc.enable_http_proxy", 0),
    # So that a half-open connection is noticed; servers refuse pings closer than 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The default backs off to two minutes; a store that came back should be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Channels of several clients in one process share no fate.
    ("grpc.use_local_subchannel_pool", 1),
)

REQUIRE_LEADER = ("hasleader", "true")
"""Metadata that makes a member without a leader refuse at once instead of staying silent."""

_TOKEN_REFUSED = ("invalid auth token", "user name is empty", "revision of auth store is old", "auth store is old")


class Compacted(StoreError):
    """The revision asked for is compacted away; start again from a newer one. Never leaves ``ftcore.logs``.

    Args:
        message: for a person.
        revision: the oldest revision that is left, or 0 if the server did not tell.
    """

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class TokenRefused(StoreError):
    """The token is missing, or no longer known to the server; nothing was done. Never leaves ``ftcore.etcd3``."""


Pem = tuple[bytes | None, bytes | None, bytes | None]
"""The authority's certificates, this client's key, and its certificates."""


def pem(config: Config) -> Pem:
    """What the files for TLS hold now.

    Raises:
        UsageError: a file cannot be read.
    """
    return _read(config.ca), _read(config.key), _read(config.cert)


def credentials(config: Config, found: Pem) -> grpc.ChannelCredentials | None:
    """TLS credentials, or None for plain connections.

    Args:
        config: where etcd is.
        found: what ``pem`` said.
    """
    return grpc.ssl_channel_credentials(*found) if config.tls else None


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise UsageError(f"store URL: cannot read {path}: {error.strerror}") from error


def translate(code: grpc.StatusCode, text: str, endpoint: str, config: Config) -> FtcoreError | ValueError:
    """What a failed call means; to be raised.

    Args:
        code: gRPC's status code.
        text: the status message.
        endpoint: who answered, or did not.
        config: how it was called.

    Returns:
        ``LogUnavailable`` (outcome unknown), ``LogFull``, ``Compacted``, ``TokenRefused``, ``NotFound`` (a lease),
        ``ValueError`` (request too large), ``UsageError`` (login refused), ``StoreError`` (permission, not an etcd).
    """
    if any(part in text for part in _TOKEN_REFUSED):
        if not config.user:
            return UsageError(f"etcd at {endpoint} wants a user; name one in the store URL (etcd://user@...)")
        return TokenRefused(f"etcd at {endpoint} does not know the token any more: {text}")
    if "space exceeded" in text:
        return LogFull(f"etcd at {endpoint} has no space left: compact and defragment it, then disarm its alarm")
    if "has been compacted" in text:
        return Compacted(f"etcd at {endpoint}: {text}", 0)
    if "request is too large" in text or "too many operations" in text or "larger than max" in text:
        return ValueError(f"etcd at {endpoint}: {text}")
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(f"etcd at {endpoint}: {text}")
    if "authentication failed" in text:
        return UsageError(f"etcd at {endpoint} refuses user {config.user!r}: check {config.password_from}")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return StoreError(
            f"etcd at {endpoint}: user {config.user!r} may not do this: {text}; "
            f"grant it readwrite on the prefix {config.prefix + '/ftcore/'!r}"
        )
    if code in (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.DATA_LOSS,
    ):
        return StoreError(f"etcd at {endpoint} cannot be used: {code.name}: {text}")
    untrusted = trouble(text)
    if untrusted:
        # Still of the kind that passes: another member may have a better one, and this one may be renewed.
        return LogUnavailable(f"etcd at {endpoint} cannot be trusted: {untrusted}; we use {config.files}")
    return LogUnavailable(f"etcd at {endpoint} does not answer: {code.name}: {text}{_hint(text, config)}")


def _hint(text: str, config: Config) -> str:
    """What is worth a try if a server closes connections as they begin."""
    if not any(sign in text for sign in ("Socket closed", "onnection reset", "Broken pipe", "GOAWAY")):
        return ""
    if not config.tls:
        return " (if it speaks TLS, name the authority: ?ca=FILE or FTCORE_ETCD_CA)"
    return "" if config.cert else " (if it asks for a certificate, name ours: ?cert=FILE&key=FILE)"
