"""What a controller answers, as far as a broker looks at it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from kerolox.protocol.header import Header

H = TypeVar("H", bound=Header)


class ControllerAnswer(Protocol):
    code: int
    remark: str | None
    body: bytes

    def header(self, kind: type[H], /) -> H: ...
