"""Channel options for etcd, and translation of its errors.

Errors are classified by gRPC's code and, where etcd uses one code for several errors, by the text. In case of doubt the
outcome counts as unknown: ``LogUnavailable``.
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
    # Never connect through an HTTP proxy.
    ("grpc.enable_http_proxy", 0),
    # Detects half-open connections; servers refuse pings at intervals below 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The default back-off grows to two minutes; after an outage, reconnect soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Clients in one process do not share connections.
    ("grpc.use_local_subchannel_pool", 1),
)

REQUIRE_LEADER = ("hasleader", "true")
"""Metadata that makes a member without a leader refuse requests at once instead of not answering."""

_TOKEN_REFUSED = ("invalid auth token", "user name is empty", "revision of auth store is old", "auth store is old")


class Compacted(StoreError):
    """The requested revision was compacted; start again from a newer one. Never leaves ``ftcore.logs``.

    Args:
        message: the message.
        revision: the oldest revision left; 0: unknown.
    """

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class TokenRefused(StoreError):
    """The token is missing or invalid; the call had no effect. Never leaves ``ftcore.etcd3``."""


Pem = tuple[bytes | None, bytes | None, bytes | None]
"""CA certificates, client key, client certificates."""


def pem(config: Config) -> Pem:
    """The current contents of the TLS files.

    Raises:
        UsageError: a file cannot be read.
    """
    return _read(config.ca), _read(config.key), _read(config.cert)


def credentials(config: Config, found: Pem) -> grpc.ChannelCredentials | None:
    """TLS credentials; None for unencrypted connections.

    Args:
        config: connection parameters.
        found: result of ``pem``.
    """
    return grpc.ssl_channel_credentials(*found) if config.tls else None


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise UsageError(f"store URL: cannot read {path}: {error.strerror}") from error


def translate(code: grpc.StatusCode, text: str, endpoint: str, config: Config) -> FtcoreError | ValueError:
    """The ftcore error for a failed call.

    Args:
        code: gRPC's status code.
        text: the status message.
        endpoint: the called endpoint.
        config: connection parameters.

    Returns:
        ``LogUnavailable`` (outcome unknown), ``LogFull``, ``Compacted``, ``TokenRefused``, ``NotFound`` (a lease),
        ``ValueError`` (request too large), ``UsageError`` (login refused), ``StoreError`` (permission, not etcd).
    """
    if any(part in text for part in _TOKEN_REFUSED):
        if not config.user:
            return UsageError(f"etcd at {endpoint} requires a user; name one in the store URL (etcd://user@...)")
        return TokenRefused(f"etcd at {endpoint} refused the token: {text}")
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
            f"etcd at {endpoint}: user {config.user!r} lacks permission: {text}; "
            f"grant the user readwrite on the prefix {config.prefix + '/ftcore/'!r}"
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
        # Retried: another member may have a valid certificate, and this one may be renewed.
        return LogUnavailable(f"etcd at {endpoint} cannot be trusted: {untrusted}; this client uses {config.files}")
    return LogUnavailable(f"etcd at {endpoint} does not answer: {code.name}: {text}{_hint(text, config)}")


def _hint(text: str, config: Config) -> str:
    """Advice for a server that closes new connections."""
    if not any(sign in text for sign in ("Socket closed", "onnection reset", "Broken pipe", "GOAWAY")):
        return ""
    if not config.tls:
        return " (if it requires TLS, name the CA file: ?ca=FILE or FTCORE_ETCD_CA)"
    return "" if config.cert else " (if it requires a client certificate, name it: ?cert=FILE&key=FILE)"
