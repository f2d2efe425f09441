"""Calls a function once a module is imported: a script may import torch late, or never."""

import sys
from collections.abc import Callable
from typing import Any


def when_imported(module: str, callback: Callable[[], None]) -> None:
    """Call a function now if a module is imported, else right after its first import."""
    if module in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _WhenImported(module, callback))


class _WhenImported:
    """Calls a function right after the first import of a module, then removes itself.

    Args:
        module: the module's full name.
        callback: the function.
    """

    def __init__(self, module: str, callback: Callable[[], None]) -> None:
        self._module, self._callback = module, callback

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See ``importlib.abc.MetaPathFinder``: the spec of another finder; the function runs after its execution."""
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return spec
        loader: Any = spec.loader
        inner = vars(loader).get("exec_module")  # of another instance that waits for the same module

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            (inner or loader.exec_module)(module)
            try:
                self._callback()
            except Exception as error:  # another torch version: training continues without counted steps
                print(f"ftcore: cannot count steps with this torch: {type(error).__name__}: {error}", file=sys.stderr)

        loader.exec_module = exec_module
        return spec
