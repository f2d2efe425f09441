"""To be imported first by processes that stay beside the workers: silences gRPC, and leaves rich out.

structlog imports rich, and that Pygments, for tracebacks in colours: 4 MiB in every agent and every master, which print
none. A later import of rich succeeds.
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
