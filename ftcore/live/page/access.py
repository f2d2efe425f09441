"""Who may read the page: the token that permits it.

The job's own token permits to stop the job, so it should not be in a browser. The page's token follows from it, and
nothing else follows from the page's: whoever has the job's token can compute the address, and give it to others.
"""

import hashlib
import hmac
from urllib.parse import urlsplit

from ftcore.errors import UsageError

_PURPOSE = b"ftcore: read the live page of the job"


def page_token(token: str) -> str:
    """The token of the page of a job with this token; empty if the job has none."""
    return hmac.new(token.encode(), _PURPOSE, hashlib.sha256).hexdigest()[:40] if token else ""


def page_link(url: str, token: str) -> str:
    """The address of a page, with its token in the fragment, which a browser never sends to a server.

    Args:
        url: of the page, as ``https://head:9401``.
        token: the job's token.

    Raises:
        UsageError: the URL is not that of a page.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/")
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise UsageError(f"--link: found {url!r}; expected the address of the page, as https://head:9401")
    return f"{parts.scheme}://{parts.netloc}/" + (f"#token={page_token(token)}" if token else "")
