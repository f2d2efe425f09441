"""What a failed TLS handshake means, in words. Pure; for the wire and for etcd alike.

House rule: a library's text is looked at for what it says of certificates only; what is not known stays the caller's.
"""

_MEANINGS = (
    ("certificate has expired", "its certificate has expired: renew it"),
    ("certificate is not yet valid", "its certificate is not valid yet: is the clock of this host right?"),
    ("Hostname Verification Check failed", "its certificate is for another name than the address that was called"),
    ("peer name", "its certificate is for another name than the address that was called"),
    ("self signed certificate", "its certificate is not signed by our authority: is it the right CA file?"),
    ("self-signed certificate", "its certificate is not signed by our authority: is it the right CA file?"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by our authority: is it the right CA file?"),
    ("certificate signature failure", "its certificate is not signed by our authority: is it the right CA file?"),
    ("WRONG_VERSION_NUMBER", "it speaks no TLS: leave TLS out here, or set it up there"),
    ("CERTIFICATE_REQUIRED", "it asks for a certificate: name ours and its key"),
    ("UNKNOWN_CA", "it does not know the authority that signed our certificate"),
    ("CERTIFICATE_EXPIRED", "it says that our certificate has expired: renew it"),
    ("andshake failed", "the TLS handshake failed"),
)


def trouble(text: str) -> str:
    """What a gRPC error's text says of TLS, as a clause about the server (``its certificate ...``); empty if nothing.

    Args:
        text: the details of the error.
    """
    return next((meaning for sign, meaning in _MEANINGS if sign in text), "")
