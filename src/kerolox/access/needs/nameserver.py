"""What requests to a nameserver need."""

from __future__ import annotations

from kerolox.access.rules import Rules

NAMESERVER: Rules = {}
