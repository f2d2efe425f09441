"""Entry of the warm process: ``python -u .../warm/__main__.py AGENT_PID ROOT MODULES``, with its channel on fd 3.

It is started by path, not with ``-m``, which would put the agent's working directory on the module path during the
preload. A worker *returns* from the serving loop, so that the script runs near the bottom of the stack and the
interpreter ends it as any script: threads joined, ``atexit`` run, everything finalised.
"""

import sys

FRESH = frozenset(sys.modules)

if not sys.flags.safe_path:
    del sys.path[0]


def _bootstrap(root: str) -> None:
    """Import the agent's copy of ftcore, and leave the module path unchanged for the script."""
    sys.path.insert(0, root)
    import ftcore.runtime.warm.serve

    sys.path.remove(root)
    assert ftcore.__file__ is not None


_bootstrap(sys.argv[2])

from ftcore.runtime.warm import run, serve  # noqa: E402  (needs the path set above)

if __name__ == "__main__":
    _body = serve.main(int(sys.argv[1]), sys.argv[3], FRESH)
    if _body is not None:
        run.run(_body)
