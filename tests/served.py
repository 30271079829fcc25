"""The rows of all servers, as their handlers declare them, and the headers of all requests."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from kerolox.broker.admin import not_supported
from kerolox.front.needs import Rule
from kerolox.front.rows import Row, declared
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.header import Header
from kerolox.protocol.headers import admin, heartbeat, offset, pop, reply, topic, transaction


def _rows(*packages: str) -> Iterator[Row]:
    for package in packages:
        path = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(path, f"{package}."):
            for _, part in inspect.getmembers(importlib.import_module(found.name), inspect.isclass):
                if part.__module__ == found.name:
                    yield from declared(part)


def _table(*packages: str) -> dict[int, Row]:
    rows: dict[int, Row] = {}
    for row in _rows(*packages):
        assert row.code not in rows, f"{row.code.name} is declared twice"
        rows[row.code] = row
    return rows


BROKER_ROWS = {row.code: row for row in not_supported.ROWS} | _table("kerolox.broker", "kerolox.access")
NAMESERVER_ROWS = _table("kerolox.nameserver")
CONTROLLER_ROWS = _table("kerolox.controller")

Rules = dict[int, Rule]


def _rules(rows: dict[int, Row]) -> Rules:
    return {int(code): row.rule for code, row in rows.items()}


BROKER, NAMESERVER, CONTROLLER = map(_rules, (BROKER_ROWS, NAMESERVER_ROWS, CONTROLLER_ROWS))

# Headers of requests that brokers send to clients, and of those that kerolox rejects.
_OTHERS: dict[int, type[Header]] = {
    Code.CHECK_TRANSACTION_STATE: transaction.CheckTransaction,
    Code.NOTIFY_CONSUMER_IDS_CHANGED: heartbeat.ConsumerIdsChanged,
    Code.RESET_CONSUMER_CLIENT_OFFSET: offset.ResetOffsetRequest,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: offset.ConsumerStatusRequest,
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: reply.PushReply,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: topic.CreateTopicRequest,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: topic.RocksdbQueueProgressRequest,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: admin.ExportRocksdbConfigRequest,
    Code.ADD_BROKER: admin.AddBrokerRequest,
    Code.REMOVE_BROKER: admin.RemoveBrokerRequest,
    Code.POP_MESSAGE: pop.PopRequest,
    Code.ACK_MESSAGE: pop.AckRequest,
    Code.PEEK_MESSAGE: pop.PeekRequest,
    Code.CHANGE_MESSAGE_INVISIBLETIME: pop.ChangeInvisibleTimeRequest,
    Code.NOTIFICATION: pop.NotificationRequest,
    Code.POLLING_INFO: pop.PollingInfoRequest,
}
REQUEST_HEADERS: dict[int, type[Header] | None] = dict.fromkeys(map(int, Code)) | _OTHERS
for _rows_of_server in (CONTROLLER_ROWS, NAMESERVER_ROWS, BROKER_ROWS):
    for _row in _rows_of_server.values():
        if not _row.rejected:
            REQUEST_HEADERS[_row.code] = _row.header
