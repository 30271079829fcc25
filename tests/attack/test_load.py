"""A part of the load that ``make attack`` measures: honest requests are answered, and the broker stops."""

from __future__ import annotations

from .load import load_all


def test_honest_clients_are_served_under_hostile_load() -> None:
    outcome = load_all(size=2, seconds=0.3)
    assert outcome.violations == []
    assert len(outcome.waits_ms) == 18
    assert outcome.log_bytes < 2_000_000  # 700 kB of a stranger made a line, and each of his requests another
