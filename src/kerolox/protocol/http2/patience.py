"""Credit of a peer for frames that bring no request and no data."""

from __future__ import annotations

from kerolox.protocol.http2.errors import ErrorCode, Http2Error
from kerolox.protocol.http2.limits import Http2Limits


class Patience:
    """Credit that frames without progress use up. Time, requests and data bring it back."""

    __slots__ = ("_at_s", "_limits", "credit")

    def __init__(self, limits: Http2Limits) -> None:
        self.credit = limits.credit
        self._limits = limits
        self._at_s: float | None = None

    def passed(self, now_s: float) -> None:
        """Add the credit for the time since the last call."""
        if self._at_s is not None and now_s > self._at_s:
            self.earn((now_s - self._at_s) * self._limits.credit_per_s)
        self._at_s = now_s

    def earn(self, credit: float) -> None:
        self.credit = min(self._limits.credit, self.credit + credit)

    def spend(self, cost: float, what: str) -> None:
        """Charge a frame without progress. Raise if the credit is used up."""
        self.credit -= cost
        if self.credit < 0:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"too many frames without a request or data (the last one: {what})",
            )
