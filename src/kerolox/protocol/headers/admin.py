"""Looking after a broker: its settings, its statistics, its neighbours in one process."""

from __future__ import annotations

from kerolox.protocol.header import Header, Int64


class UpdateBrokerConfigRequest(Header, frozen=True, kw_only=True):
    """Changed settings in the body. RocketMQ has no field here."""

    accept_loss: bool | None = None  # a follower may lead though messages are lost by it


class BrokerConfigAnswer(Header, frozen=True, kw_only=True):
    """The version of the settings in the body, as JSON."""

    version: str


class BrokerStatsRequest(Header, frozen=True, kw_only=True):
    """One number of the broker's statistics."""

    stats_name: str
    stats_key: str


class ExportRocksdbConfigRequest(Header, frozen=True, kw_only=True):
    """Write settings kept in RocksDB to JSON files."""

    config_type: str


class AddBrokerRequest(Header, frozen=True, kw_only=True):
    """Start one more broker in a container, with the settings in the body."""

    config_path: str | None = None


class RemoveBrokerRequest(Header, frozen=True, kw_only=True):
    """Stop a broker of a container."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Int64
