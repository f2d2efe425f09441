"""A Kubernetes API server for tests: stateful, over real HTTP, with the answers of a real one. See README.md."""

from .client import Client
from .server import ApiServer
from .status import ApiError
from .thread import ApiServerThread

__all__ = ["ApiError", "ApiServer", "ApiServerThread", "Client"]
