"""Tables that a broker keeps as JSON under ``config/``: topics, groups, offsets, filters.

Each is loaded once, changed on the event loop, encoded there, and saved in a thread. The files are
RocketMQ's: each broker reads the other's.
"""

from __future__ import annotations

from kerolox.store.tables.filters import BloomPlaces, FilterData, FilterTable
from kerolox.store.tables.groups import GroupTable
from kerolox.store.tables.offsets import ConsumerOffsets, DelayOffsets, LightOffsets
from kerolox.store.tables.table import Table, TableBroken
from kerolox.store.tables.topics import TopicTable

__all__ = [
    "BloomPlaces",
    "ConsumerOffsets",
    "DelayOffsets",
    "FilterData",
    "FilterTable",
    "GroupTable",
    "LightOffsets",
    "Table",
    "TableBroken",
    "TopicTable",
]
