"""Pages: what an HTTP port shows, by path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """The answer of a path."""

    text: str
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


Render = Callable[[], Awaitable[Page]]
Pages = Mapping[str, Render]
