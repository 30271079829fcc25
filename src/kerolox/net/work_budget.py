"""Limits of the event loop's time that a connection may use before others are served.

There are two limits. A round over all connections with pending frames takes about ROUND_S, so each turn gets
shorter as they become more. And a long frame that costs much more processor time than its size explains (JSON
in an unusual spelling, a table that needs conversion) is charged to the source address of its connection: the
next long frames of that address wait until the time is paid back, on whichever connection they arrive. Short
frames and usual long ones never wait.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

PASS_S_MAX: Final = 0.01  # a server serves other connections after this time
PASS_S_MIN: Final = 0.0005
ROUND_S: Final = 0.05
LONG_FRAME_BYTES: Final = 1024  # a connection's turn may end before a longer frame
MEASURED_FRAME_BYTES: Final = 4096  # shorter frames are neither measured nor delayed
# Free cost of a frame: 20 ms per MiB is more than strict JSON, signatures and records cost.
EXPLAINED_S: Final = 0.002
EXPLAINED_S_PER_BYTE: Final = 20e-9
PAID_BACK_TIMES: Final = 20  # a second of the loop is paid back in 20 s: 5 % of the loop per address
BURST_S: Final = 0.05  # free time of the loop per address: first-time work costs more
WAIT_S_MAX: Final = 10.0
SOURCES_MAX: Final = 4096


class WorkBudget:
    """Processor time that long frames have cost, by source address."""

    __slots__ = ("_paid_back_s", "turns")

    def __init__(self) -> None:
        self.turns: set[Hashable] = set()  # connections with pending frames in this round
        self._paid_back_s: dict[str, float] = {}  # source address → time at which its cost is paid back

    @property
    def pass_s_max(self) -> float:
        """Length of one connection's turn."""
        return max(PASS_S_MIN, min(PASS_S_MAX, ROUND_S / (len(self.turns) + 1)))

    def wait_s(self, source: str, now_s: float) -> float:
        """Return the time that a long frame from this address has to wait."""
        paid_back_s = self._paid_back_s.get(source)
        return 0.0 if paid_back_s is None else max(0.0, paid_back_s - now_s - BURST_S * PAID_BACK_TIMES)

    def charge(self, source: str, size_bytes: int, cost_s: float, now_s: float) -> None:
        """Charge the processor time of a long frame to its source address."""
        beyond_s = cost_s - EXPLAINED_S - size_bytes * EXPLAINED_S_PER_BYTE
        if beyond_s <= 0:
            return
        known = self._paid_back_s
        owed_s = max(0.0, known.get(source, now_s) - now_s) + beyond_s * PAID_BACK_TIMES
        known[source] = now_s + min(BURST_S * PAID_BACK_TIMES + WAIT_S_MAX, owed_s)
        if len(known) > SOURCES_MAX:
            self._paid_back_s = {one: at_s for one, at_s in known.items() if at_s > now_s}
