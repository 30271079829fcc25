"""Properties that tell a replayed copy from its original message."""

from __future__ import annotations

from typing import Final

REPLAY_ID: Final = "KEROLOX_REPLAY"  # which replay made the copy
REPLAY_FROM: Final = "KEROLOX_REPLAY_FROM"  # the place of the message that was copied
