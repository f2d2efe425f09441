"""The Secrets of a job: its token, and the certificates of its own etcd. New random values at each call."""

import datetime
import ipaddress
import secrets
from typing import Any, Final

from ftcore.errors import UsageError
from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.job_file import TrainJob
from ftcore_kubernetes.manifests import labelled
from ftcore_kubernetes.pods import tls_secret, token_secret

VALID: Final = datetime.timedelta(days=3650)
"""Life of the certificates: longer than that of a job."""


def own_secrets(job: TrainJob, namespace: str) -> list[KubeObject]:
    """The Secrets that the user has not provided.

    Args:
        job: the job.
        namespace: its namespace.

    Raises:
        UsageError: certificates are needed, and the package for them is not installed.
    """
    found = []
    if not job.spec.token_secret:
        found.append(_secret(job, namespace, token_secret(job), {"token": secrets.token_hex(32)}))
    if job.spec.store.etcd is not None and not job.spec.store.tls_secret:
        service = f"{job.name}-etcd"
        names = [service, f"*.{service}", f"*.{service}.{namespace}.svc", f"{service}.{namespace}.svc", "localhost"]
        found.append(_secret(job, namespace, tls_secret(job), certificates(service, names)))
    return found


def _secret(job: TrainJob, namespace: str, name: str, data: dict[str, str]) -> KubeObject:
    return labelled("v1", "Secret", job, namespace, name=name) | {"type": "Opaque", "stringData": data}


def certificates(name: str, hosts: list[str]) -> dict[str, str]:
    """An authority of its own, and one certificate of it for servers, peers and clients, as PEM.

    Args:
        name: common name.
        hosts: host names that the certificate is valid for, besides 127.0.0.1.

    Raises:
        UsageError: the package ``cryptography`` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise UsageError(
            "the certificates of the job's own etcd need a package: pip install 'ftcore-kubernetes[tls]'; or give "
            "spec.store.tlsSecret"
        ) from error

    def named(text: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def begun(subject: str, key: Any) -> Any:
        now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 -- not in the core: a certificate has a date
        builder = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named(f"{name} authority"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + VALID)

    def pem(certificate: Any) -> str:
        return str(certificate.public_bytes(serialization.Encoding.PEM).decode())

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.BasicConstraints(ca=True, path_length=0)
    ca = begun(f"{name} authority", ca_key).add_extension(authority, critical=True).sign(ca_key, hashes.SHA256())
    hosts_of = [*map(x509.DNSName, hosts), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    leaf = begun(name, key).add_extension(x509.SubjectAlternativeName(hosts_of), critical=False)
    leaf = leaf.add_extension(uses, critical=False).sign(ca_key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {"ca.crt": pem(ca), "tls.crt": pem(leaf), "tls.key": private.decode()}
