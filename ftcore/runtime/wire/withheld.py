"""Variables with secrets, and who does not get them."""

from collections.abc import Mapping

TOKEN_ENV = "FTCORE_TOKEN"

WITHHELD = (TOKEN_ENV, "FTCORE_ETCD_PASSWORD")
"""Variables with secrets that workers do not inherit: scripts and their loggers like to print what they find. Nor do
the processes in which other packages' policies, rules and messengers run."""


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for code that is not ftcore's: all but what ``WITHHELD`` names."""
    return {name: value for name, value in environ.items() if name not in WITHHELD}
