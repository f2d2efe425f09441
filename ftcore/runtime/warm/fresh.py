"""Entry of a worker that cannot be a fork: ``python -u .../warm/fresh.py BODY_FD ROOT SCRIPT ARGS...``.

The worker is a fresh interpreter, because the launch needs other modules than the warm process has loaded. It runs the
script as a forked worker does (``run.py``): steps are counted once the script has imported torch, stacks are written on
request, an exception is written to the error file, and the process ends without waiting for threads that wait for the
GIL.

House rules: torch is never imported here. The process becomes plain ``python -u SCRIPT`` if this interpreter cannot
import ftcore (``PYTHON_EXEC`` may name any), or if a module loaded here would hide one of the script's own.
"""

import os
import sys

FRESH = frozenset(sys.modules)

if not sys.flags.safe_path:
    del sys.path[0]


def _plain() -> None:
    """Become ``python -u SCRIPT``, or ``python -u -m MODULE``."""
    dash_m = ["-m"] if sys.argv[3] == "-m" else []
    os.execv(sys.executable, [sys.executable, "-u", *dash_m, *sys.argv[3 + len(dash_m) :]])


def _bootstrap(root: str) -> bool:
    """Import the agent's copy of ftcore, and leave the module path unchanged for the script."""
    sys.path.insert(0, root)
    try:
        import ftcore.runtime.warm.run  # noqa: F401
    except Exception:  # e.g. another version of Python, or without the packages that ftcore needs
        return False
    finally:
        sys.path.remove(root)
    return True


if __name__ == "__main__":
    if not _bootstrap(sys.argv[2]):
        _plain()

    from ftcore.runtime.warm import child, run

    _body = child.take_over(int(sys.argv[1]), FRESH)
    if _body is None:
        _plain()
    else:
        run.run(_body)
