"""Needs of requests to a broker."""

from __future__ import annotations

from kerolox.access.needs import administration, consuming, pop, sending
from kerolox.access.needs.kinds import joined

BROKER = joined(
    sending.RULES,
    consuming.RULES,
    pop.RULES,
    administration.TOPICS_AND_GROUPS,
    administration.BROKER,
    administration.ACCESS,
)
