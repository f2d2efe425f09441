"""Endpoints and credentials of etcd: ``etcd://user@h1:2379,h2:2379/prefix?ca=FILE&cert=FILE&key=FILE``.

The password comes from a file or the environment, never from the URL, and is in no ``repr``. Defaults come from the
environment: ``FTCORE_ETCD_USER``, ``_PASSWORD_FILE`` or ``_PASSWORD``, ``_CA``, ``_CERT``, ``_KEY``.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import attrs

from ftcore.errors import UsageError

DEFAULT_PORT = 2379
PASSWORD_ENV = "FTCORE_ETCD_PASSWORD"
_FORM = "expected etcd://[user@]host[:port][,host[:port]...][/prefix][?ca=FILE&cert=FILE&key=FILE]"


@attrs.frozen(kw_only=True)
class Config:
    """Connection parameters of an etcd cluster.

    Args:
        endpoints: ``host:port`` of its members, at least one.
        prefix: prefix of every key; empty, or with a leading and no trailing slash.
        user: etcd user; empty: no authentication.
        password: the user's password.
        ca: PEM file with the CA certificates for the servers; if empty while ``cert`` is set: those of the system.
        cert: PEM file with the client's certificate chain.
        key: PEM file with the client's key.
        password_from: source of the password, for messages.
    """

    endpoints: tuple[str, ...]
    prefix: str = ""
    user: str = ""
    password: str = attrs.field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    password_from: str = PASSWORD_ENV

    @property
    def files(self) -> str:
        """The TLS files, for messages."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in ("ca", "cert") if getattr(self, name)) or "no TLS"

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted: ``ca`` or ``cert`` is set."""
        return bool(self.ca or self.cert)

    def __str__(self) -> str:
        return ",".join(self.endpoints)

    @classmethod
    def from_url(cls, url: str, environ: Mapping[str, str] | None = None) -> "Config":
        """Parse a URL of the form in the module's docstring.

        Args:
            url: the URL.
            environ: used instead of ``os.environ``.

        Raises:
            UsageError: the URL has another form, contains a password, or has ``cert`` without ``key``.
        """
        env = os.environ if environ is None else environ
        # urlsplit takes only one host, and recent versions refuse host names beside an IPv6 address.
        scheme, _, rest = url.partition("://")
        location, _, options_text = rest.partition("?")
        netloc, slash, path = location.partition("/")
        try:
            query = parse_qsl(options_text, keep_blank_values=True, strict_parsing=bool(options_text))
        except ValueError as error:
            raise UsageError(f"store URL {_redacted(url)!r}: {error}; {_FORM}") from error
        if scheme == "etcd" and not netloc:
            raise UsageError(f"store URL {_redacted(url)!r} names no host: {_FORM}")
        if scheme != "etcd" or "#" in rest:
            raise UsageError(f"store URL {_redacted(url)!r}: {_FORM}")
        login, _, hosts = netloc.rpartition("@")
        if ":" in login:
            raise UsageError(
                f"store URL: a password is not allowed in the URL; set {PASSWORD_ENV} or {PASSWORD_ENV}_FILE"
            )
        options = {name: env.get(f"FTCORE_ETCD_{name.upper()}", "") for name in ("ca", "cert", "key")}
        for name, value in query:
            if name not in options:
                raise UsageError(f"store URL: unknown option {name!r}; accepted: ca, cert, key")
            options[name] = value
        if bool(options["cert"]) != bool(options["key"]):
            raise UsageError("store URL: cert and key must be given together")
        user = unquote(login) or env.get("FTCORE_ETCD_USER", "")
        password, password_from = _password(env) if user else ("", PASSWORD_ENV)
        if user and not password:
            raise UsageError(f"etcd user {user!r} needs a password in {PASSWORD_ENV}_FILE or {PASSWORD_ENV}")
        prefix = unquote(slash + path).rstrip("/")
        endpoints = tuple(_endpoint(host) for host in hosts.split(","))
        return cls(
            endpoints=endpoints,
            prefix=prefix,
            user=user,
            password=password,
            password_from=password_from,
            **options,
        )


def _password(env: Mapping[str, str]) -> tuple[str, str]:
    """The password and its source."""
    file = env.get(f"{PASSWORD_ENV}_FILE", "")
    if not file:
        return env.get(PASSWORD_ENV, ""), PASSWORD_ENV
    if env.get(PASSWORD_ENV):
        raise UsageError(f"{PASSWORD_ENV}_FILE and {PASSWORD_ENV} are both set: unset one of them")
    try:
        return Path(file).read_text(errors="replace").strip(), f"{PASSWORD_ENV}_FILE={file}"
    except OSError as error:
        raise UsageError(f"{PASSWORD_ENV}_FILE: cannot read {file}: {error.strerror}") from error


def _endpoint(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    bad_v6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not host or bad_v6 or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"store URL: {text!r} is not host:port; an IPv6 address needs brackets; {_FORM}")
    return f"{host}:{port}"


def _redacted(url: str) -> str:
    scheme, colon, rest = url.partition("://")
    login, at, hosts = rest.rpartition("@")
    return f"{scheme}{colon}{login.partition(':')[0]}{at}{hosts}"
