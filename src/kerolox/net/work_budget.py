"""Budget of the event loop's time that one source address may cost before others are served.

What costs much more processor time than its bytes explain (JSON in an unusual spelling, a table that has to
be bent into shape) is charged to the source address of its connection. From then on such work waits until the
time was paid back, whichever connection it comes by: long frames, and headers that are not strict JSON. Other
short frames and honest long ones never wait: what they cost grows with their bytes, and slowly.
"""

from __future__ import annotations

from typing import Final

LONG_FRAME_BYTES: Final = 1024  # before a longer frame a connection's turn may end
MEASURED_FRAME_BYTES: Final = 4096  # shorter frames are neither measured nor put off
# Free cost of a frame: 20 ms a MiB is more than strict JSON, signatures and records cost.
EXPLAINED_S: Final = 0.002
EXPLAINED_S_PER_BYTE: Final = 20e-9
PAID_BACK_TIMES: Final = 20  # a second of the loop is paid back in 20 s: 5 % of the loop per address
BURST_S: Final = 0.05  # free time of the loop per address: first-time work costs more
WAIT_S_MAX: Final = 10.0
SOURCES_MAX: Final = 4096


class WorkBudget:
    """Processor time that each source address has cost beyond what its bytes explain."""

    __slots__ = ("_paid_back_s",)

    def __init__(self) -> None:
        self._paid_back_s: dict[str, float] = {}  # source address → when all it has cost is paid back

    def wait_s(self, source: str, now_s: float) -> float:
        """Return how long costly work for this address has to wait."""
        paid_back_s = self._paid_back_s.get(source)
        return 0.0 if paid_back_s is None else max(0.0, paid_back_s - now_s - BURST_S * PAID_BACK_TIMES)

    def charge_frame(self, source: str, size_bytes: int, cost_s: float, now_s: float) -> None:
        """Note the processor time that a long frame from this address has cost."""
        self.charge(source, cost_s - EXPLAINED_S - size_bytes * EXPLAINED_S_PER_BYTE, now_s)

    def charge(self, source: str, beyond_s: float, now_s: float) -> None:
        """Note processor time that nothing explains."""
        if beyond_s <= 0:
            return
        known = self._paid_back_s
        owed_s = max(0.0, known.get(source, now_s) - now_s) + beyond_s * PAID_BACK_TIMES
        known[source] = now_s + min(BURST_S * PAID_BACK_TIMES + WAIT_S_MAX, owed_s)
        if len(known) > SOURCES_MAX:
            self._paid_back_s = {one: at_s for one, at_s in known.items() if at_s > now_s}
