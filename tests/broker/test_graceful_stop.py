"""A broker that stops tells newer clients to go elsewhere, if it was asked to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import Hook
from kerolox.net.peer import Peer
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.offset import MaxOffsetRequest, UpdateOffsetRequest
from kerolox.testing.broker import running_broker

from .talk import Talk, until

OLD, NEW = 475, 479


class OfVersion(Hook):
    """Lets a client's requests say another version."""

    def __init__(self, version: int) -> None:
        self.version = version

    def before_request(self, peer: Peer, request: Command) -> None:
        request.version = self.version


def of_version(version: int) -> Dialer:
    dialer = Dialer()
    dialer.handlers.hooks.append(OfVersion(version))
    return dialer


async def stopping(broker: Broker) -> asyncio.Task[None]:
    task = asyncio.create_task(broker.close())
    await until(lambda: broker.consuming.waits.held == 0 and broker.ports.handlers.gates)
    return task


async def ask_max(dialer: Dialer, address: str) -> Command:
    return await dialer.call(
        address, RequestCode.GET_MAX_OFFSET, MaxOffsetRequest(topic="T", queue_id=0), timeout_s=5
    )


async def test_newer_clients_are_sent_away_and_older_ones_served(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, graceful_stop=True) as running:
        broker = running.broker
        async with of_version(OLD) as old, of_version(NEW) as new:
            talk = Talk(new, running)
            await talk.send("T")
            assert (await ask_max(old, running.address)).code == 0
            held = asyncio.create_task(talk.pull("T", 0, 1, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND))
            await until(lambda: broker.consuming.waits.held == 1)
            stop = await stopping(broker)

            # A pull that waited is answered; it, and everybody else, hears of it with the next request.
            assert (await asyncio.wait_for(held, 5)).code == ResponseCode.PULL_NOT_FOUND
            answers = [await talk.send("T"), await talk.pull("T"), await ask_max(new, running.address)]
            assert {answer.code for answer in answers} == {ResponseCode.GO_AWAY}
            assert (await ask_max(old, running.address)).fields["offset"] == "1"
            assert (await Talk(old, running).send("T")).code == 0
            # What needs no answer is taken from everybody.
            commit = UpdateOffsetRequest(consumer_group="consumers", topic="T", queue_id=0, commit_offset=1)
            await new.tell(running.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            await until(lambda: broker.tables.offsets.offset("T", "consumers", 0) == 1)
            assert not stop.done()
        await asyncio.wait_for(stop, 10)  # all are gone: long before its 30 seconds


async def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    options: dict[str, Any] = {"graceful_stop": True, "graceful_stop_s": 0}
    async with running_broker(directory=tmp_path, **options) as running, of_version(NEW) as new:
        await Talk(new, running).send("T")
        await asyncio.wait_for(running.broker.close(), 10)


async def test_nobody_is_sent_away_unless_asked_for(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, of_version(NEW) as new:
        await Talk(new, running).send("T")
        await asyncio.wait_for(running.broker.close(), 10)
        assert not running.broker.ports.handlers.gates
