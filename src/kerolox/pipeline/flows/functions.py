"""Python functions that a pipeline file names: ``module:function``, or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from kerolox.errors import KeroloxError, nearest


class FunctionNotFound(KeroloxError):
    """The function that a step names does not exist or cannot be imported."""


def load_function(text: str, folder: Path) -> Callable[..., Any]:
    """Import the function; files are relative to ``folder``. Importing runs the file."""
    module_name, colon, name = text.rpartition(":")
    if not colon or not module_name or not name.isidentifier():
        raise FunctionNotFound(f"{text!r}: expected module:function or file.py:function")
    try:
        module = (
            _from_file(folder / module_name)
            if module_name.endswith(".py")
            else importlib.import_module(module_name)
        )
    except FunctionNotFound:
        raise
    except Exception as error:  # any error that the file raises
        raise FunctionNotFound(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        functions = [each for each, value in vars(module).items() if callable(value) and each[:1] != "_"]
        raise FunctionNotFound(f"{module_name} has no function {name}.{nearest(name, functions)}")
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FunctionNotFound(f"{path} does not exist")
    name = f"kerolox_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if "pyspark" in sys.modules:
        # Executors do not have the file, so its functions are pickled by value, not by name.
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module
