"""Checks before a launch: whether it can run, and whether it can run in a fork of the warm process.

``check`` reports what the user has to fix, in one message, before any process is started. ``why_exec`` reports why a
fork would differ from a fresh start, such as variables that are read when libraries or the interpreter are loaded.
"""

import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Final

from ftcore.errors import UsageError
from ftcore.ports import Launch

LOAD_TIME: Final = (
    "ATEN_", "DNNL_", "GLIBC_", "GOMP_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "NUMEXPR_", "OMP_",
    "ONEDNN_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TORCH", "VECLIB_",
)  # fmt: skip
"""Prefixes of variables that are read when the interpreter starts or a library is loaded."""

NOT_LOAD_TIME: Final = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_GLOO_", "OMP_NUM_THREADS")
"""Exceptions: read later, or applied again in a forked worker (``OMP_NUM_THREADS``)."""


def check(launch: Launch) -> None:
    """Raise ``UsageError`` if the launch cannot run on this node."""
    if not os.path.isdir(launch.cwd):
        raise UsageError(f"the working directory {launch.cwd} does not exist on this node")
    if not launch.argv:
        raise UsageError("nothing to run: give a script, or a module with -m, or a program with --no-python")
    name = launch.argv[0]
    if launch.no_python:
        _check_program(name, launch)
    elif launch.module:
        _check_module(name, launch)
    else:
        _check_script(name, launch.cwd)


def _check_script(name: str, cwd: str) -> None:
    path = os.path.join(cwd, name)
    if not os.path.exists(path):
        raise UsageError(f"script {name} not found (looked for {path}); give the path of a Python file")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        raise UsageError(
            f"{path} is a directory without __main__.py; give the path of a Python file, or a module with -m"
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"script {path} cannot be read by this user; change its permissions")


def _check_program(name: str, launch: Launch) -> None:
    if "/" not in name:
        search = launch.envs[0].get("PATH") if launch.envs else None
        if shutil.which(name, path=search) is None:
            raise UsageError(f"program {name} not found in PATH; give its path")
        return
    path = os.path.join(launch.cwd, name)
    if not os.path.exists(path):
        raise UsageError(f"program {name} not found (looked for {path}); give its path")
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory; give the path of a program")
    if not os.access(path, os.X_OK):
        raise UsageError(f"program {path} is not executable; chmod +x it, or leave out --no-python to run it by Python")


def _check_module(name: str, launch: Launch) -> None:
    """Find the module without importing anything: the user's packages must not run in the agent."""
    extra = launch.envs[0].get("PYTHONPATH", "").split(os.pathsep) if launch.envs else []
    path: list[str] | None = [launch.cwd, *filter(None, extra), *sys.path]
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        prefix = ".".join(parts[:depth])
        spec = importlib.machinery.PathFinder.find_spec(prefix, path) or (
            _other_finders(prefix) if depth == 1 else None
        )
        if spec is None:
            raise UsageError(f"module {name} not found: there is no {prefix} in {launch.cwd} or on the module path")
        path = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else None
        if path is None and depth < len(parts):
            raise UsageError(f"module {name} not found: {prefix} is a module, not a package")
    if path is not None and importlib.machinery.PathFinder.find_spec(f"{name}.__main__", path) is None:
        raise UsageError(
            f"{name} is a package without a __main__ module, so it cannot be run with -m; name a module in it"
        )


def _other_finders(name: str) -> importlib.machinery.ModuleSpec | None:
    """The module found by the interpreter's other finders: built-in and frozen modules, editable installs."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, None) if find is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


def why_exec(launch: Launch, loaded: Mapping[str, str]) -> str:
    """Why the launch needs fresh interpreters; empty: it can be forked.

    Args:
        launch: the launch.
        loaded: the environment of the warm process.
    """
    if launch.no_python:
        return "--no-python"
    if "PYTHON_EXEC" in launch.envs[0]:
        return "PYTHON_EXEC is set"
    if not launch.module:
        reason = _not_source(os.path.join(launch.cwd, launch.argv[0]))
        if reason:
            return reason
    for env in launch.envs:
        for name in sorted(env.keys() | loaded.keys()):
            if env.get(name) != loaded.get(name) and _load_time(name):
                return f"{name} differs from its value in the warm process"
        if "OMP_NUM_THREADS" in loaded and "OMP_NUM_THREADS" not in env:
            return "OMP_NUM_THREADS differs from its value in the warm process"
    return ""


def _load_time(name: str) -> bool:
    return name.startswith(LOAD_TIME) and not name.startswith(NOT_LOAD_TIME)


def _not_source(path: str) -> str:
    if os.path.isdir(path):
        return "the script is a directory"
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError:
        return ""
    if head == b"PK\x03\x04":
        return "the script is an archive"
    return "the script is compiled" if head == importlib.util.MAGIC_NUMBER else ""
