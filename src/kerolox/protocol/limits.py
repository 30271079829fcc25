"""The bounds of the protocol. What has to fit, and how much of a stranger's input we look at.

The first group is RocketMQ's own and must not differ from a peer's. The second is ours: bounds on
work that a peer of good will never reaches.
"""

from __future__ import annotations

from typing import Final

# --- shared with every peer --------------------------------------------------------------------
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024  # the whole frame, with its own length word
TOPIC_LENGTH_MAX: Final = 127
RETRY_TOPIC_LENGTH_MAX: Final = 255  # %RETRY% and %DLQ% topics
GROUP_LENGTH_MAX: Final = 120
PROPERTIES_BYTES_MAX: Final = 32767  # a signed 16-bit length in the record
MESSAGE_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
TOPIC_RECORD_BYTES_MAX_V1: Final = 127  # longer topics need the second record layout
POP_MESSAGES_MAX: Final = 32
QUERY_MESSAGES_MAX: Final = 64
BINARY_CODE_MAX: Final = 32767  # the compact header's code is a signed 16-bit number
INT32_MAX: Final = 2**31 - 1
INT32_MIN: Final = -(2**31)
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)

# --- ours ---------------------------------------------------------------------------------------
# The header's length has 24 bits. Real headers hold names, numbers and at most one properties
# text; its worst JSON spelling is six bytes a character, 192 KiB.
HEADER_BYTES_MAX: Final = 1024 * 1024
EXT_FIELD_COUNT_MAX: Final = 1024
TOPIC_QUEUES_MAX: Final = 65_536  # of a topic on one broker: every look at it is a row for each
ROUTE_QUEUES_MAX: Final = 4 * TOPIC_QUEUES_MAX  # of a topic on all brokers
PROPERTY_COUNT_MAX: Final = 4096
BATCH_MESSAGE_COUNT_MAX: Final = 65536
JSON_DEPTH_MAX: Final = 64  # the deepest real body nests nine levels
JSON_BYTES_MAX: Final = FRAME_BYTES_MAX
JSON_NUMBER_LENGTH_MAX: Final = 400  # a double never needs more; longer ones only cost time
# What strict JSON is not, or does not fit, is read in Python: a microsecond or so for each of these. Tables
# of ten thousand queues stay below.
JSON_SCAN_STEPS_MAX: Final = 120_000
JSON_FIT_NODES_MAX: Final = 200_000
# A header that is not strict JSON is read before its sender is known. No client of RocketMQ writes one longer
# than a few hundred bytes; reading this much takes a few milliseconds.
DIALECT_HEADER_BYTES_MAX: Final = 32 * 1024
DIALECT_HEADER_STEPS_MAX: Final = 2048
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024  # a compressed registration, inflated
# A compressed body, inflated: twice the longest frame. Producers of RocketMQ check bodies against 4 MiB, then
# compress them.
INFLATED_BODY_BYTES_MAX: Final = 32 * 1024 * 1024
INFLATED_BLOCK_BYTES_MAX: Final = 64 * 1024 * 1024  # all bodies of one answer or batch
