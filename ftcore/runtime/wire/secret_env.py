"""Environment variables that contain secrets."""

from collections.abc import Mapping

TOKEN_ENV = "FTCORE_TOKEN"

SECRET_VARIABLES = (TOKEN_ENV, "FTCORE_ETCD_PASSWORD")
"""Variables that workers and plugin processes do not inherit: scripts and loggers often print the environment."""


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for external code: without ``SECRET_VARIABLES``."""
    return {name: value for name, value in environ.items() if name not in SECRET_VARIABLES}
