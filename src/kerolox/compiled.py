"""The hot core, compiled from ``core/`` where a compiler was at hand when kerolox was installed.

Every function of the core has a twin in Python that does the same, slower. ``KEROLOX_PURE=1`` in the
environment keeps to the twins.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def load() -> ModuleType | None:
    """The compiled module, if there is one."""
    try:
        return importlib.import_module("kerolox._core")
    except ImportError:
        return None


CORE = None if os.environ.get("KEROLOX_PURE", "") not in ("", "0") else load()


def compiled(name: str, pure: F) -> F:
    """The compiled function of this name, or its twin."""
    return cast(F, getattr(CORE, name, pure))
