"""Limits on what a broker keeps for its clients, and the error beyond a limit.

Everything that a peer can make grow has a limit, since clients share it: memory, tables that are saved, and
the loops over them. All limits are far above the needs of honest clusters. Those of topics and groups are
options (``maxTopics``, ``maxGroups``).
"""

from __future__ import annotations

from typing import Final

from kerolox.errors import Refused
from kerolox.protocol.codes import ResponseCode

GROUPS_OF_CLIENT_MAX: Final = 500  # consumer groups of one connection; same for producer groups
MEMBERS_OF_GROUP_MAX: Final = 10_000  # connections; each is notified when another one joins
CLIENT_ID_LENGTH_MAX: Final = 1024
PRODUCER_GROUP_LENGTH_MAX: Final = 255
MISMATCHES_TOLD_MAX: Final = 100  # differing subscriptions that are remembered for one member
QUEUE_LOCKS_MAX: Final = 200_000  # locks of all groups
OFFSETS_MAX: Final = 2_000_000  # offsets of all groups in all queues
FORBIDDEN_MAX: Final = 10_000  # topics that groups may not read
REQUEST_MODES_MAX: Final = 10_000  # topics of groups that have set a request mode
GROUP_BYTES_MAX: Final = 16 << 10  # saved settings of one group
FILTERS_OF_TOPIC_MAX: Final = 1000  # groups with an SQL92 filter
FILTERS_CHARACTERS_MAX: Final = 16 << 20  # of all conditions that groups have subscribed
FLOWS_MAX: Final = 50_000  # topics, groups and queues with separate statistics, of each kind
PROGRESS_ROWS_MAX: Final = 200_000  # queues in one answer about the progress of groups


def too_many(what: str, bound: str, limit: int) -> Refused:
    """Return the refusal of a request beyond a limit. It names what would be too many, the limit, and its
    value."""
    return Refused(ResponseCode.SYSTEM_ERROR, f"too many {what}: the limit is {limit} ({bound})")
