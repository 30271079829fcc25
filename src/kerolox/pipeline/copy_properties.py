"""Properties that tell a replayed copy from its original message."""

from __future__ import annotations

from typing import Final

REPLAY_ID: Final = "KEROLOX_REPLAY"  # id of the replay that made the copy
REPLAY_FROM: Final = "KEROLOX_REPLAY_FROM"  # queue and offset of the original message
