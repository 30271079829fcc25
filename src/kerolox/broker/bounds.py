"""How much of each kind a broker keeps for its clients, and what it says beyond that.

Whatever a peer can make grow has a bound: memory, tables that are saved and loops over them are everybody's.
All of these are far above what honest clusters have. Those of topics and groups are options (``maxTopics``,
``maxGroups``).
"""

from __future__ import annotations

from typing import Final

from kerolox.errors import Refused
from kerolox.protocol.codes import ResponseCode

GROUPS_OF_CLIENT_MAX: Final = 500  # consumer groups of one connection, and as many producer groups
MEMBERS_OF_GROUP_MAX: Final = 10_000  # connections: each is told when another one comes
CLIENT_ID_LENGTH_MAX: Final = 1024
PRODUCER_GROUP_LENGTH_MAX: Final = 255
MISMATCHES_TOLD_MAX: Final = 100  # differing subscriptions that are remembered of one member
QUEUE_LOCKS_MAX: Final = 200_000  # locks of all groups
OFFSETS_MAX: Final = 2_000_000  # offsets of all groups in all queues
FORBIDDEN_MAX: Final = 10_000  # topics that groups may not read
REQUEST_MODES_MAX: Final = 10_000  # topics of groups with a request mode of their own
GROUP_BYTES_MAX: Final = 16 << 10  # settings of one group, as they are saved
FILTERS_OF_TOPIC_MAX: Final = 1000  # groups that choose by a condition
FILTERS_CHARACTERS_MAX: Final = 16 << 20  # of all conditions that groups have subscribed
FLOWS_MAX: Final = 50_000  # topics, groups and queues with statistics of their own, of each kind
PROGRESS_ROWS_MAX: Final = 200_000  # queues in one answer about the progress of groups


def too_many(what: str, bound: str, limit: int) -> Refused:
    """The refusal: what would be too many, the name of the bound, and where it lies."""
    return Refused(ResponseCode.SYSTEM_ERROR, f"too many {what}: at most are {limit} ({bound})")
