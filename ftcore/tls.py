"""Explanation of failed TLS handshakes, for the wire and etcd. Pure.

Recognizes only what a library's message says about certificates; the caller reports other messages unchanged.
"""

_OTHER_NAME = "its certificate does not contain the name or address that was called"
_OTHER_CA = "its certificate is not signed by our CA: check the CA file"

_MEANINGS = (
    ("certificate has expired", "its certificate has expired: renew it"),
    ("certificate is not yet valid", "its certificate is not valid yet: check this host's clock"),
    ("Hostname Verification Check failed", _OTHER_NAME),
    ("peer name", _OTHER_NAME),
    ("self signed certificate", _OTHER_CA),
    ("self-signed certificate", _OTHER_CA),
    ("CERTIFICATE_VERIFY_FAILED", _OTHER_CA),
    ("certificate signature failure", _OTHER_CA),
    ("WRONG_VERSION_NUMBER", "it does not use TLS: turn TLS off here, or on there"),
    ("CERTIFICATE_REQUIRED", "it requires a client certificate: name the certificate and its key"),
    ("UNKNOWN_CA", "it does not trust the CA that signed our certificate"),
    ("CERTIFICATE_EXPIRED", "it reports that our certificate has expired: renew it"),
    ("andshake failed", "the TLS handshake failed"),
)


def trouble(text: str) -> str:
    """The TLS error in a gRPC error's text, as a clause about the server (``its certificate ...``); empty if none.

    Args:
        text: the details of the error.
    """
    return next((meaning for sign, meaning in _MEANINGS if sign in text), "")
