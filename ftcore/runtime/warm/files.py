"""Finds the file that a script was reading when it raised; exceptions of torch and pickle do not name the file."""

import io
import os
from types import TracebackType

_LOADERS = {
    ("torch/serialization.py", "load"): "f",
    ("safetensors/torch.py", "load_file"): "filename",
    ("numpy/lib/npyio.py", "load"): "file",
    ("numpy/lib/_npyio_impl.py", "load"): "file",
}
"""Functions that read a whole file, by the end of their module's path and their name: the argument with the path."""

_OF_CONTENT = ("EOFError", "UnpicklingError", "BadZipFile", "ReadError", "error")
"""Exceptions about the contents of a file; the last is ``zlib.error``."""


def read_by(error: BaseException, trace: TracebackType | None) -> str:
    """The path of the file; empty if unknown.

    Args:
        error: the exception.
        trace: its traceback.
    """
    found = ""
    while trace is not None:
        frame = trace.tb_frame
        path, name = frame.f_code.co_filename.replace(os.sep, "/"), frame.f_code.co_name
        for (module, function), argument in _LOADERS.items():
            if name == function and path.endswith(module):
                found = _path(frame.f_locals.get(argument)) or found
        if type(error).__name__ in _OF_CONTENT:
            opened = [_path(value) for value in frame.f_locals.values() if _is_read(value)]
            found = next(filter(None, reversed(opened)), found)
        trace = trace.tb_next
    return found


def _is_read(value: object) -> bool:
    return isinstance(value, io.BufferedReader | io.TextIOWrapper) and "r" in str(getattr(value, "mode", "r"))


def _path(value: object) -> str:
    if isinstance(value, str | os.PathLike):
        return os.path.abspath(os.fsdecode(os.fspath(value)))
    name = getattr(value, "name", "")
    return os.path.abspath(name) if isinstance(name, str) and name and not name.startswith("<") else ""
