"""Import this first in processes that run beside the workers: it silences gRPC and keeps rich from being imported.

structlog imports rich and Pygments for coloured tracebacks: 4 MiB in every agent and master, which print none. A later
import of rich succeeds.
"""

import sys
from types import ModuleType
from typing import cast

from ftcore.launch.environ import silence_grpc


def _without_rich() -> None:
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = cast(ModuleType, None)  # an import of it fails
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


silence_grpc()
_without_rich()
