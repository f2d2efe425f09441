"""Which file a script was reading when an exception was raised; the exceptions of torch and pickle do not name it."""

import io
import os
from types import TracebackType

_LOADERS = {
    ("torch/serialization.py", "load"): "f",
    ("safetensors/torch.py", "load_file"): "filename",
    ("numpy/lib/npyio.py", "load"): "file",
    ("numpy/lib/_npyio_impl.py", "load"): "file",
}
"""Functions that read a whole file: the end of their module's path and their name, the argument that names it."""

_OF_CONTENT = ("EOFError", "UnpicklingError", "BadZipFile", "ReadError", "error")
"""Exceptions about what a file holds; of ``zlib`` the last."""


def read_by(error: BaseException, trace: TracebackType | None) -> str:
    """The path of the file; empty if it is not known.

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
