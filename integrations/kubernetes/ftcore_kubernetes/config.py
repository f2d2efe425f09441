"""Where the API server is, and who asks: from the pod's service account, or from a kubeconfig file.

Sources: "Accessing the API from a Pod" and "Organizing Cluster Access Using kubeconfig Files" of the Kubernetes
documentation; credential plugins: ``client.authentication.k8s.io/v1``.
"""

import base64
import json
import os
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

from ftcore.errors import UsageError

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory of the pod's service account."""

PLUGIN_S: Final = 30.0
"""Longest time for a credential plugin."""


@attrs.frozen(kw_only=True)
class ApiConfig:
    """How to reach an API server.

    Args:
        url: its URL, without a slash at the end.
        namespace: the namespace of requests that name none.
        token: bearer token; empty: none, or in ``token_file``.
        token_file: file with the token; it is read again, because kubelets renew it.
        verify: TLS context, with the client's certificate; False: the server's certificate is not checked.
    """

    url: str
    namespace: str = "default"
    token: str = attrs.field(default="", repr=False)
    token_file: Path | None = None
    verify: ssl.SSLContext | bool = True

    def bearer(self) -> str:
        """The token for the next request; empty: none."""
        if self.token_file is not None:
            return self.token_file.read_text().strip()
        return self.token


def load(env: Mapping[str, str] = os.environ, context: str = "") -> ApiConfig:
    """The configuration of this process.

    Args:
        env: ``KUBECONFIG`` wins over the service account, and that over ``~/.kube/config``.
        context: context of the kubeconfig file; empty: its current one.

    Raises:
        UsageError: there is none, or it cannot be used; says which file and key.
    """
    if context and not env.get("KUBECONFIG") and env.get("KUBERNETES_SERVICE_HOST"):
        raise UsageError(
            f"--context {context}: this pod uses its service account, which has no contexts; set KUBECONFIG to a "
            "kubeconfig file, or omit --context"
        )
    if not env.get("KUBECONFIG") and env.get("KUBERNETES_SERVICE_HOST"):
        return in_pod(env)
    named = env.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    for path in (Path(each).expanduser() for each in named.split(os.pathsep) if each):
        if path.exists():
            return from_kubeconfig(path, context)
    raise UsageError(
        f"no Kubernetes cluster is known: {named} does not exist, and this is no pod with a service account; set "
        "KUBECONFIG to your kubeconfig file"
    )


def in_pod(env: Mapping[str, str], account: Path = ACCOUNT) -> ApiConfig:
    """The configuration of a pod: its service account.

    Args:
        env: the pod's environment.
        account: directory with ``token``, ``ca.crt`` and ``namespace``.

    Raises:
        UsageError: the pod has none (``automountServiceAccountToken: false``).
    """
    token, ca, namespace = account / "token", account / "ca.crt", account / "namespace"
    if not token.exists():
        raise UsageError(
            f"{token} does not exist: the pod needs a service account (automountServiceAccountToken: true)"
        )
    host, port = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
    return ApiConfig(
        url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        token_file=token,
        verify=_trusting(ca) if ca.exists() else True,
    )


def _trusting(ca: Path | None, data: str | None = None) -> ssl.SSLContext:
    """Trust an authority. Those of clusters often lack the key identifier that Python 3.13 asks for by default."""
    tls = ssl.create_default_context(cafile=str(ca) if ca is not None else None, cadata=data)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def from_kubeconfig(path: Path, context: str = "") -> ApiConfig:
    """The configuration in a kubeconfig file.

    Raises:
        UsageError: it cannot be used; says which key.
    """
    try:
        data: dict[str, Any] = yaml.safe_load(path.read_text()) or {}
        chosen = context or str(data.get("current-context", ""))
        where = _named(path, data, "contexts", "context", chosen)
        cluster = _named(path, data, "clusters", "cluster", str(where.get("cluster")))
        user = _named(path, data, "users", "user", str(where.get("user"))) if where.get("user") else {}
        user = user | _plugin(path, user.get("exec"))
        return ApiConfig(
            url=str(cluster["server"]).rstrip("/"),
            namespace=str(where.get("namespace") or "default"),
            token=str(user.get("token") or ""),
            token_file=_beside(path, user["tokenFile"]) if user.get("tokenFile") else None,
            verify=_tls(path, cluster, user),
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path}: this kubeconfig cannot be used: {type(error).__name__}: {error}") from error


def _named(path: Path, data: Mapping[str, Any], group: str, key: str, name: str) -> dict[str, Any]:
    for each in data.get(group) or ():
        if each.get("name") == name:
            return dict(each.get(key) or {})
    known = ", ".join(str(each.get("name")) for each in data.get(group) or ()) or "none"
    raise UsageError(f"{path}: {group} has no {name!r}; it has: {known}")


def _beside(path: Path, name: str) -> Path:
    return path.parent / name


def _tls(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext | bool:
    if cluster.get("insecure-skip-tls-verify"):
        return False
    if not str(cluster["server"]).startswith("https"):
        return True
    ca = cluster.get("certificate-authority")
    data = cluster.get("certificate-authority-data")
    tls = _trusting(_beside(path, ca) if ca else None, base64.b64decode(data).decode() if data else None)
    if user.get("client-certificate"):
        tls.load_cert_chain(_beside(path, user["client-certificate"]), _beside(path, user["client-key"]))
    elif user.get("client-certificate-data"):
        _load_pair(tls, *(base64.b64decode(user[f"client-{name}-data"]) for name in ("certificate", "key")))
    return tls


def _load_pair(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Python's ssl reads certificates from files alone: one in memory, which no other user can open."""
    fd = os.memfd_create("client-certificate")
    try:
        os.write(fd, certificate + b"\n" + key)
        tls.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _plugin(path: Path, plugin: Mapping[str, Any] | None) -> dict[str, str]:
    """Ask a credential plugin."""
    if plugin is None:
        return {}
    argv = [str(plugin["command"]), *map(str, plugin.get("args") or ())]
    env = dict(os.environ) | {str(each["name"]): str(each["value"]) for each in plugin.get("env") or ()}
    info = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
    env["KUBERNETES_EXEC_INFO"] = json.dumps(info)
    try:
        found = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PLUGIN_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{path}: the credential plugin {argv[0]} failed: {error}") from error
    status = json.loads(found.stdout)["status"]
    pair = {"client-certificate-data": "clientCertificateData", "client-key-data": "clientKeyData"}
    found_pair = {key: base64.b64encode(status[name].encode()).decode() for key, name in pair.items() if name in status}
    return found_pair | ({"token": status["token"]} if "token" in status else {})
