"""What requests to a controller need."""

from __future__ import annotations

from kerolox.access.rules import Rules

CONTROLLER: Rules = {}
