"""A Kubernetes API server for tests: stateful, over real HTTP, with the answers of a real one. See README.md."""

from .server import ApiServer
from .status import ApiError

__all__ = ["ApiError", "ApiServer"]
