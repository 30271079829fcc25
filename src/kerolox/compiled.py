"""The compiled core of the hot path, built from ``core/`` if a compiler was available at installation.

Every function of the core has a slower Python twin with the same result. ``KEROLOX_PURE=1`` in the
environment selects the twins.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def load() -> ModuleType | None:
    """Return the compiled module; None if it is missing or disabled."""
    try:
        return importlib.import_module("kerolox._core")
    except ImportError:
        return None


CORE = None if os.environ.get("KEROLOX_PURE", "") not in ("", "0") else load()


def compiled(name: str, pure: F) -> F:
    """Return the compiled function of this name, or its twin."""
    return cast(F, getattr(CORE, name, pure))
