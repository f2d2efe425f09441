"""Credentials of one process: loading and validation.

| variable | meaning |
|---|---|
| ``FTCORE_TLS_CA`` | PEM file with the CA of the job's certificates; if set, every TCP connection uses TLS |
| ``FTCORE_TLS_CERT``, ``FTCORE_TLS_KEY`` | PEM files with this process's certificate chain and its key |
| ``FTCORE_TLS_NAME`` | the name in every master's certificate, if it is not the master's address |
| ``FTCORE_TLS_MUTUAL`` | ``0``: callers need no certificate; the token authenticates them |
| ``FTCORE_TOKEN_FILE``, ``FTCORE_TOKEN`` | the job's token |

On one machine no setup is needed: the token is created beside the log, private to the user, and sockets are in a
directory that only the user can enter.

House rules: no secret is in a ``repr``, an event, a log line, a command line or the environment of external code.
Unusable credentials are reported at the start, in one message. Certificates are read again for every channel and every
handshake, so that they may expire before the job ends; while new files cannot be read, the old ones stay in use.
"""

import os
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import grpc
import structlog

from ftcore.errors import UsageError
from ftcore.runtime.wire.secret_env import TOKEN_ENV

TOKEN_FILE_ENV = "FTCORE_TOKEN_FILE"
CA_ENV, CERT_ENV, KEY_ENV = "FTCORE_TLS_CA", "FTCORE_TLS_CERT", "FTCORE_TLS_KEY"
NAME_ENV = "FTCORE_TLS_NAME"
MUTUAL_ENV = "FTCORE_TLS_MUTUAL"

TOKEN_LENGTHS = (16, 1024)
"""Allowed lengths: a shorter token could be guessed from a recorded handshake; a longer one is likely another file."""

Pem = tuple[bytes, bytes | None, bytes | None]

logger = structlog.get_logger()


@attrs.define(kw_only=True, eq=False)
class Tls:
    """Certificates in files.

    Args:
        ca: the job's certificate authority.
        cert: this process's certificate chain; None: the process can only be a client.
        key: the key of the certificate.
        name: the name in every master's certificate; empty: the master's address.
        mutual: callers must show a certificate, too.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    name: str = ""
    mutual: bool = True
    _pem: Pem | None = attrs.field(default=None, init=False, repr=False)

    def pem(self) -> Pem:
        """The contents of the files; while they cannot be used, the last usable contents.

        Raises:
            UsageError: the files cannot be used and never could.
        """
        try:
            found: Pem = (
                _read(self.ca, CA_ENV),
                _read(self.cert, CERT_ENV) if self.cert is not None else None,
                _read(self.key, KEY_ENV) if self.key is not None else None,
            )
            if found != self._pem:
                self._check_pair()
                self._pem = found
        except UsageError as error:
            if self._pem is None:
                raise
            logger.warning("cannot reload certificates; the old ones stay in use", error=str(error))
        assert self._pem is not None
        return self._pem

    def check(self, host: str = "") -> None:
        """Validate the files with a TLS handshake in memory.

        Args:
            host: address of a master on this host; empty: none.

        Raises:
            UsageError: the files cannot be used; the message says why.
        """
        self.pem()
        if self.cert is None:
            return
        try:
            self._shake_hands(self.name or host)
        except ssl.SSLCertVerificationError as error:
            raise UsageError(self._explain(error, host)) from error
        except ssl.SSLError as error:
            raise UsageError(f"{CERT_ENV}={self.cert} cannot be used for TLS: {error.reason or error}") from error

    def _explain(self, error: ssl.SSLCertVerificationError, host: str) -> str:
        message = error.verify_message or str(error)
        if "expired" in message or "not yet valid" in message:
            return f"{CERT_ENV}={self.cert}: {message}; renew it (or the authority in {CA_ENV}={self.ca})"
        if "ismatch" in message:
            return (
                f"{CERT_ENV}={self.cert} is not for {self.name or host}, the name of a master on this host: "
                f"{message}; have it signed for that name, or set {NAME_ENV} to the name in the certificate"
            )
        return f"{CERT_ENV}={self.cert} is not signed by {CA_ENV}={self.ca} for both ends of a connection: {message}"

    def _check_pair(self) -> None:
        """Check that the CA is valid and that key and certificate belong together. Raises ``UsageError``."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.ca)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"{CA_ENV}={self.ca} holds no certificate in PEM form") from error
        if self.cert is not None and self.key is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key, lambda: "")
            except (ssl.SSLError, OSError, ValueError) as error:
                reason = getattr(error, "reason", None) or error
                raise UsageError(
                    f"{CERT_ENV}={self.cert} and {KEY_ENV}={self.key} are not a certificate and its key in PEM form "
                    f"without a password: {reason}"
                ) from error

    def _shake_hands(self, host: str) -> None:
        assert self.cert is not None
        contexts = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)]
        contexts[0].verify_mode = ssl.CERT_REQUIRED if self.mutual else ssl.CERT_NONE
        contexts[1].check_hostname = bool(host)
        for context in contexts:
            context.load_cert_chain(self.cert, self.key)
            context.load_verify_locations(self.ca)
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = contexts[0].wrap_bio(up, down, server_side=True)
        client = contexts[1].wrap_bio(down, up, server_hostname=host or None)
        ends = [client, server]
        for _ in range(8):
            for end in list(ends):
                try:
                    end.do_handshake()
                    ends.remove(end)
                except ssl.SSLWantReadError:
                    continue
        assert not ends, "a handshake has at most four flights"


@attrs.define(kw_only=True, eq=False)
class Security:
    """Credentials that one process shows to the others of its job and requires from them.

    Args:
        token: the job's token; empty: none.
        tls: certificates; None: TCP connections are unencrypted.
    """

    token: str = attrs.field(default="", repr=False)
    tls: Tls | None = None

    def for_channel(self, target: str) -> grpc.ChannelCredentials | None:
        """Client credentials for a target; None: unencrypted."""
        if self.tls is None or target.startswith("unix:"):
            return None
        ca, cert, key = self.tls.pem()
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)

    def for_server(self, target: str) -> grpc.ServerCredentials | None:
        """Server credentials for a target; None: unencrypted.

        Raises:
            UsageError: no certificate is configured.
        """
        tls = self.tls
        if tls is None or target.startswith("unix:"):
            return None
        if tls.cert is None:
            raise UsageError(f"a master needs a certificate: set {CERT_ENV} and {KEY_ENV}, or --leadership never")
        served = tls.pem()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            found = tls.pem()
            if found == served:
                return None
            served = found
            return _configuration(found, tls.mutual)

        fetch: Any = renewed  # None means "unchanged"; the published stubs do not allow it
        return grpc.dynamic_ssl_server_credentials(
            _configuration(served, tls.mutual), fetch, require_client_authentication=tls.mutual
        )


NONE = Security()
"""No authentication: for one process, or a network that is trusted."""


def from_environ(environ: Mapping[str, str] | None = None, *, own: Path | None = None, make: bool = False) -> Security:
    """The credentials configured in the environment.

    Args:
        environ: replaces ``os.environ``.
        own: file of the token that ftcore creates itself, used if the environment has none; None: no such file.
        make: create that file if it does not exist.

    Raises:
        UsageError: the credentials cannot be used; the message names variable and file.
    """
    env = os.environ if environ is None else environ
    tls = _tls(env)
    token = _token(env, own, make)
    if tls is not None and not tls.mutual and not token:
        raise UsageError(f"{MUTUAL_ENV}=0 without a token admits every caller: set {TOKEN_FILE_ENV}, too")
    return Security(token=token, tls=tls)


def _configuration(pem: Pem, mutual: bool) -> grpc.ServerCertificateConfiguration:
    ca, cert, key = pem
    assert cert is not None
    assert key is not None
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca if mutual else None)


def _tls(env: Mapping[str, str]) -> Tls | None:
    ca, cert, key = (env.get(name, "") for name in (CA_ENV, CERT_ENV, KEY_ENV))
    if not ca:
        for name in (CERT_ENV, KEY_ENV, NAME_ENV, MUTUAL_ENV):
            if env.get(name):
                raise UsageError(f"{name} is set, but {CA_ENV} is not: set it to the CA of the job's certificates")
        return None
    if bool(cert) != bool(key):
        raise UsageError(f"{CERT_ENV} and {KEY_ENV} belong together: set both or neither")
    mutual = env.get(MUTUAL_ENV, "") or "1"
    if mutual not in ("0", "1"):
        raise UsageError(f"{MUTUAL_ENV}: found {mutual!r}; expected 1 (callers show a certificate) or 0")
    tls = Tls(
        ca=Path(ca),
        cert=Path(cert) if cert else None,
        key=Path(key) if key else None,
        name=env.get(NAME_ENV, ""),
        mutual=mutual == "1",
    )
    tls.pem()
    return tls


def _token(env: Mapping[str, str], own: Path | None, make: bool) -> str:
    named = env.get(TOKEN_FILE_ENV, "")
    if named:
        if env.get(TOKEN_ENV):
            raise UsageError(f"{TOKEN_FILE_ENV} and {TOKEN_ENV} are both set: leave one of them out")
        return _checked(_secret(Path(named), TOKEN_FILE_ENV), f"{TOKEN_FILE_ENV}={named}")
    if env.get(TOKEN_ENV):
        return _checked(env[TOKEN_ENV], TOKEN_ENV)
    if own is None:
        return ""
    if make:
        _make(own)
    if not os.path.lexists(own):
        return ""
    found = own.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{own}, the job's token, is not private to this user: check its owner and permissions, then remove it"
        )
    return _checked(_secret(own, "the job's token"), str(own))


def _make(path: Path) -> None:
    """Create the token once and atomically, even if several processes try."""
    if os.path.lexists(path):
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, secrets.token_urlsafe(32).encode())
        finally:
            os.close(fd)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise UsageError(f"cannot create {path}, the job's token: {error.strerror}") from error


def _checked(token: str, where: str) -> str:
    least, most = TOKEN_LENGTHS
    if not least <= len(token) <= most or not token.isprintable() or not token.isascii():
        raise UsageError(
            f"{where}: expected a token of {least} to {most} printable ASCII characters, found {len(token)}; make one "
            f"with: openssl rand -hex 32"
        )
    return token


def _secret(path: Path, source: str) -> str:
    data = _read(path, source)
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = 0
    if mode & 0o002:
        raise UsageError(f"{source}={path} is writable by every user of this machine: run chmod 600 on it")
    if mode & 0o004:
        logger.warning("a secret is readable by every user of this machine: run chmod 600 on it", file=str(path))
    return data.decode("utf-8", "replace").strip()


def _read(path: Path, source: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20)
    except OSError as error:
        raise UsageError(f"{source}: cannot read {path}: {error.strerror}") from error
