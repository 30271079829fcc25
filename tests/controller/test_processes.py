"""Two processes with one identity, as when a store directory was copied: one of them is refused by name. A
process that starts anew is not."""

from __future__ import annotations

import logging

import pytest

from kerolox.controller.controller import Controller
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers import controller as headers
from kerolox.testing.clock import ManualClock

from .conftest import A, FakeBroker, until

HAS = {"epoch": 1, "max_offset": 100}


async def leading(one: FakeBroker) -> None:
    """A master alone in its set."""
    await one.join(broker_start=11)
    assert (await one.elect()).code == 0
    await one.heartbeat(broker_start=11, heartbeat_timeout_mills=5000, **HAS)


async def test_a_copy_at_another_address_is_refused_while_the_other_one_lives(
    controller: Controller, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with FakeBroker(controller) as one, FakeBroker(controller) as copy:
        await leading(one)
        copy.id = 1
        await clock.advance(4)
        refused = await copy.register(broker_start=12, **HAS)
        assert refused.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
        assert f"id 1 of broker 'broker-a' belongs to the process at {one.address}" in str(refused.remark)
        assert "Stop this one and remove brokerIdentity*" in str(refused.remark)
        assert f"identity_refused group='broker-a' id=1 address={copy.address!r}" in caplog.text
        heard = await copy.heartbeat(broker_start=12, **HAS)
        assert heard.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        asked = headers.ElectMasterRequest(broker_name=A, broker_id=1, broker_start=12)
        answer = await copy.ask(1002, asked)
        assert answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
        assert await one.master() == (1, one.address, 1)
        assert (await one.heartbeat(broker_start=11, **HAS)).code == 0
        # The other one is gone, but may lead on for as long as its lease lasts.
        await one.heartbeat(broker_start=11, heartbeat_timeout_mills=5000, **HAS)
        await one.hang_up()
        await until(lambda: len(controller.live) == 0)
        assert (await copy.register(broker_start=12, **HAS)).code != 0
        await clock.advance(5.1)
        assert (await copy.register(broker_start=12, **HAS)).code == 0
        assert controller.groups[A].master is None  # no epoch is led by two processes
        assert (await copy.elect()).code == 0
        assert await copy.master() == (1, copy.address, 3)


async def test_who_starts_anew_at_its_address_is_taken_at_once(controller: Controller) -> None:
    """Nobody else can listen there, so the one before is gone, though its connection has not closed yet."""
    async with FakeBroker(controller) as one, FakeBroker(controller) as again:
        await leading(one)
        again.id = 1
        assert (await again.register(broker_start=12, address=one.address, **HAS)).code == 0
        assert (await again.heartbeat(broker_start=12, **HAS)).code == 0
        # Unless two hosts have one address: the one that was replaced does not come back.
        heard = await one.heartbeat(broker_start=11, **HAS)
        assert heard.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        answer = await one.register(broker_start=11, **HAS)
        assert answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID


async def test_the_same_process_may_register_again_and_goes_on(controller: Controller) -> None:
    async with FakeBroker(controller) as one:
        await leading(one)
        assert (await one.register(broker_start=11, **HAS)).code == 0
        assert await one.master() == (1, one.address, 1)


async def test_a_controller_that_has_just_begun_does_not_know_who_lives(
    controller: Controller, clock: ManualClock
) -> None:
    async with FakeBroker(controller) as one, FakeBroker(controller) as copy:
        await leading(one)
        await clock.advance(11)
        assert not controller.live.view([A]).of(A)
        controller.live.begin()  # as when another controller led until now, and heard it
        copy.id = 1
        assert (await copy.register(broker_start=12, **HAS)).code != 0
        await clock.advance(11)
        assert (await copy.register(broker_start=12, **HAS)).code == 0


async def test_brokers_that_do_not_say_their_number_are_taken_as_ever(controller: Controller) -> None:
    """RocketMQ's."""
    async with FakeBroker(controller) as one, FakeBroker(controller) as again:
        await one.join()
        assert (await one.elect()).code == 0
        again.id = 1
        assert (await again.register()).code == 0
        assert (await again.heartbeat()).code == 0
        assert (await again.elect()).code == 0
