"""A store directory is copied, and both are started: the copy is refused by name."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kerolox import Message, Producer
from kerolox.nameserver.server import NameServer
from kerolox.testing.broker import running_broker
from kerolox.testing.controlled import running_controlled
from kerolox.testing.nameserver import running_nameserver

QUICK = {"alive_ms": 100, "alive_timeout_ms": 500, "controller_silence_ms": 2000, "who_leads_ms": 300}


@pytest.mark.parametrize("which", [1, 2])
async def test_a_copy_of_a_broker_takes_no_role(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: int
) -> None:
    """Of the leader, alone in its set then; and of a follower."""
    caplog.set_level(logging.INFO)
    async with (
        running_controlled(2, directory=tmp_path, **QUICK) as group,
        Producer(group.nameserver_address, group="p") as producer,
    ):
        for number in range(20):
            await producer.send(Message("T", b"%d" % number))
        await group.caught_up()
        if which == 1:
            await group.kill(2)
            await group.in_sync(1)
        shutil.copytree(tmp_path / f"broker-{which}" / "store", tmp_path / "copy" / "store")
        (tmp_path / "copy" / "store" / "lock").unlink(missing_ok=True)
        (tmp_path / "copy" / "store" / "abort").unlink(missing_ok=True)
        options = group.broker(which).broker.options
        async with running_broker(
            directory=tmp_path / "copy",
            nameserver=group.nameserver,
            controlled=True,
            controllers=options.controllers,
            **QUICK,
        ) as copy:
            await group.until(lambda: "identity_taken id=" in caplog.text, "copy that is refused")
            for number in range(20, 40):
                await producer.send(Message("T", b"%d" % number))
            await asyncio.sleep(3)  # longer than a lease
            assert not copy.broker.leadership.leads
            text = copy.broker.leadership.waits_for
            assert "Two processes have one identity: was a store directory copied?" in text
            assert "remove brokerIdentity*" in text
            await producer.send(Message("T", b"last"))
            assert group.leader is group.broker(1)
        assert f"address='{copy.address}'" not in "".join(
            line for line in caplog.text.splitlines() if "broker_registered" in line
        )


async def test_a_copy_of_a_follower_is_refused_by_the_name_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a controller."""
    caplog.set_level(logging.INFO)
    async with running_nameserver() as nameserver:
        settings: dict[str, Any] = {"nameserver": nameserver, "brokerRole": "SLAVE", "brokerId": 1}
        async with running_broker(directory=tmp_path / "one", **settings) as one:
            await until(lambda: registered(nameserver) == {1: one.address})
            shutil.copytree(tmp_path / "one" / "store", tmp_path / "copy" / "store")
            async with running_broker(directory=tmp_path / "copy", **settings):
                await until(lambda: "register_failed" in caplog.text)
                assert f"is registered from {one.address} by another process, which is alive" in caplog.text
                assert registered(nameserver) == {1: one.address}
            await one.stop()
            await one.start()  # the same one again is taken at once
            await until(lambda: registered(nameserver) == {1: one.address})


def registered(nameserver: NameServer) -> dict[int, str]:
    found = nameserver.routes.groups.get("broker-a")
    return {} if found is None else found.addresses


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass in time")
