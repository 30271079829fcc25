from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kerolox.nameserver.server import NameServer
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.registration import Registration, body_crc32, encode_registration
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.headers.registration import RegisterBrokerRequest
from kerolox.testing.nameserver import running_nameserver

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


@pytest.fixture
async def nameserver() -> AsyncIterator[NameServer]:
    async with running_nameserver() as running:
        yield running


@pytest.fixture(params=[JSON, BINARY], ids=["json", "binary"])
async def dialer(request: pytest.FixtureRequest) -> AsyncIterator[Dialer]:
    async with Dialer(encoding=request.param) as ours:
        yield ours


def table(*names: str, counter: int = 1) -> TopicConfigTable:
    return TopicConfigTable(
        data_version=DataVersion(counter=counter, timestamp=1000),
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in names
        },
    )


async def register(
    dialer: Dialer,
    nameserver: NameServer,
    *names: str,
    name: str = "broker-a",
    address: str = A,
    id: int = 0,
    counter: int = 1,
    compressed: bool = False,
    fields: dict[str, str] | None = None,
    **header: Any,
) -> Command:
    body = encode_registration(
        Registration(topic_config_serialize_wrapper=table(*(names or ("t1", "t2")), counter=counter)),
        compressed=compressed,
    )
    told = {"ha_server_addr": address.replace("10911", "10912"), "body_crc32": body_crc32(body)} | header
    return await dialer.call(
        nameserver.address,
        RequestCode.REGISTER_BROKER,
        RegisterBrokerRequest(
            broker_name=name,
            broker_addr=address,
            cluster_name="c1",
            broker_id=id,
            compressed=compressed,
            **told,
        ),
        body,
        fields=fields,
    )


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass in time")
