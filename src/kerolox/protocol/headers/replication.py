"""Master and slave: addresses and offsets of replication."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int64


class HaInfo(Header, frozen=True, kw_only=True):
    """Replication data exchanged by brokers of a group; request and answer have the same fields."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class WatchTablesRequest(Header, frozen=True, kw_only=True):
    """A follower of ours names the last change of its leader's tables that it has a copy of."""

    broker_id: Int64
    broker_address: str
    life: str = ""
    serial: Int64 = 0
    hold_millis: Int64 = 0


class ResetMasterFlushOffsetRequest(Header, frozen=True, kw_only=True):
    """Forget how far the master had flushed."""

    master_flush_offset: Int64
