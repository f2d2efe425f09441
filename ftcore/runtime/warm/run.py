"""Runs the user's script in this interpreter as ``python -u script`` would.

Equal: ``sys.argv``, ``sys.orig_argv``, the module path, ``__main__`` (its classes can be pickled, and
``multiprocessing`` can spawn), random seeds, thread counts from the environment, tracebacks without ftcore's frames,
exit codes, threads and ``atexit``. Different: preloaded modules are in ``sys.modules`` already; all workers have the
``hash(str)`` seed of the warm process; modules are not torn down after a failure (``_leave``) or while native threads
still run (``_end``).

A plain script's uncaught exception is written to an error file in torchrun's format; torchrun requires ``@record``.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import json
import marshal
import os
import sys
import threading
import time
import traceback
from types import ModuleType, TracebackType
from typing import NoReturn

from ftcore.runtime.warm import child, files, protocol, stacks, title

ERROR_FILE_ENV = "TORCHELASTIC_ERROR_FILE"
_kept: list[object] = []
_HERE = os.path.dirname(os.path.abspath(__file__))
_PYC_HEADER = 16


def run(body: protocol.WorkerBody) -> None:
    """Run the script to its end; an exception ends the process as in python.

    Args:
        body: the launch; its ``env`` is the environment of the preload here.
    """
    # the crashed thread alone: a fault is classified by the last lines, and stacks of several threads look like a hang
    faulthandler.enable(file=sys.__stderr__ or 2, all_threads=False)
    stacks.listen(body["stacks"])
    _threads(body["env"])
    hooks = importlib.import_module(body["hooks"]) if body["hooks"] else None
    if hooks is not None:
        hooks.install()
    try:
        _run_main(body)
        if hooks is not None:
            hooks.ended()
        _end()
    except SystemExit as error:
        code = error.code
        if code is None or code == 0:
            if hooks is not None:
                hooks.ended()
            _end()
            raise
        if not isinstance(code, int):
            print(code, file=sys.stderr)
        _leave(code if isinstance(code, int) else 1)
    except BaseException as error:
        _report(error)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = _silent  # shown already; python itself ends the process by SIGINT
            raise
        _leave(1)


def _run_main(body: protocol.WorkerBody) -> None:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    # The old cache is kept alive: freeing it would copy a thousand shared pages.
    cache, sys.path_importer_cache = sys.path_importer_cache, {}
    _kept.append(cache)
    if not sys.flags.safe_path:
        sys.path.insert(0, child.first_path(body))
    name, *rest = body["argv"]
    sys.orig_argv = [sys.executable, "-u", *(["-m"] if body["module"] else []), *body["argv"]]
    title.show(" ".join(sys.orig_argv))
    if body["module"]:
        import runpy

        sys.argv = ["-m", *rest]
        # The interpreter itself calls this function for -m, by this name since Python 2.5.
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        return
    sys.argv = [name, *rest]
    path = os.path.join(body["cwd"], name)
    if _is_container(path):
        import runpy

        if not sys.flags.safe_path:
            del sys.path[0]
        sys.path.insert(0, path)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    with open(path, "rb") as file:
        text = file.read()
    compiled = text[:4] == importlib.util.MAGIC_NUMBER
    loader = importlib.machinery.SourcelessFileLoader if compiled else importlib.machinery.SourceFileLoader
    main.__file__ = path
    main.__loader__ = loader("__main__", path)
    main.__dict__["__cached__"] = None
    code = marshal.loads(text[_PYC_HEADER:]) if compiled else compile(text, path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _is_container(path: str) -> bool:
    """Whether the path is a directory or an archive whose ``__main__`` python runs."""
    if os.path.isdir(path):
        return True
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _threads(loaded: dict[str, str]) -> None:
    """Set torch's thread count from the worker's environment; torch reads it only when it is loaded."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    wanted = text.partition(",")[0]
    if "torch" in sys.modules and text != loaded.get("OMP_NUM_THREADS") and wanted.isdigit() and int(wanted) > 0:
        sys.modules["torch"].set_num_threads(int(wanted))


def _report(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    error.__traceback__ = trace
    if isinstance(error, Exception):
        _write_error_file(error, trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:
        sys.__excepthook__(type(error), error, trace)


def _write_error_file(error: Exception, trace: TracebackType | None) -> None:
    """Source of the format: ``torch.distributed.elastic.multiprocessing.errors.error_handler``."""
    path = os.environ.get(ERROR_FILE_ENV, "")
    with contextlib.suppress(OSError):
        if not path or os.path.getsize(path) > 0:  # written by the script's own @record
            return
    stack = "".join(traceback.format_exception(type(error), error, trace))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    reading = files.read_by(error, trace)
    text = f"{type(error).__name__}: {error}" + (f" (reading {reading})" if reading else "")
    message = {"message": {"message": text, "extraInfo": extra}}
    try:
        with open(path, "w") as file:
            json.dump(message, file)
    except OSError as problem:
        print(f"ftcore: cannot write the error file {path}: {problem.strerror}", file=sys.stderr)


def _end() -> None:
    """End a successful script as python does; returns if the interpreter can be torn down.

    A native thread, such as gloo's, that takes the GIL during the teardown aborts the process (torch 2.13, if the group
    was not destroyed or its model is a global). So the script's own objects are released first. If native threads still
    run then, the process ends without the teardown.
    """
    _finish_script()
    if _foreign_threads():
        _release_globals()
    if _foreign_threads():
        _leave(0)


def _finish_script() -> None:
    threading._shutdown()  # type: ignore[attr-defined]  # the interpreter itself calls it by this name
    atexit._run_exitfuncs()


def _foreign_threads() -> bool:
    own = {thread.native_id for thread in threading.enumerate()}
    return any(int(name) not in own for name in os.listdir("/proc/self/task"))


def _release_globals() -> None:
    """Clear the script's module in the interpreter's order."""
    names = vars(sys.modules["__main__"])
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and private is (name.startswith("_") and not name.startswith("__")):
                names[name] = None
    gc.collect()


def _leave(code: int) -> NoReturn:
    """End a script as python does, but without freeing its objects.

    With torch loaded, the teardown of all modules takes 0.3 s and would delay the report of a failure. Everything that
    a script may rely on is done: threads joined, ``atexit`` run, open files flushed.
    """
    try:
        _finish_script()
        ctypes.CDLL(None).fflush(None)
        for found in gc.get_objects():
            if issubclass(type(found), io.IOBase):
                with contextlib.suppress(Exception):
                    found.flush()
    finally:
        os._exit(code & 0xFF)


def _silent(_type: type[BaseException], _error: BaseException, _trace: TracebackType | None) -> None:
    return
