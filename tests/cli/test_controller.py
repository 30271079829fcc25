"""``kerolox controller status``, ``elect`` and ``clean``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.client.admin.controllers import Controllers
from kerolox.controller.carriers.carrier import LeadingController
from kerolox.controller.carriers.embedded import EmbeddedCarrier
from kerolox.controller.controller import Controller
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.controller import ControllerMetadataAnswer
from kerolox.testing.clock import ManualClock
from kerolox.testing.controller import running_controller
from tests.controller.conftest import FakeBroker, until


async def command(controller: str, *words: str) -> tuple[int, str, str]:
    def run() -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["controller", *words], env={"KEROLOX_CONTROLLER_ADDR": controller})
        return result.exit_code, result.stdout, result.stderr

    return await asyncio.to_thread(run)


async def told(controller: str, *words: str) -> Any:
    code, out, errors = await command(controller, *words, "--json")
    assert code == 0, errors
    return json.loads(out)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def controller(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Controller]:
    async with running_controller(clock=clock, directory=tmp_path) as running:
        await until(lambda: running.is_leader)
        yield running


@pytest.fixture
async def pair(controller: Controller) -> AsyncIterator[tuple[FakeBroker, FakeBroker]]:
    """Two brokers, in sync; the second is somewhat behind."""
    async with FakeBroker(controller) as one, FakeBroker(controller) as two:
        await one.join()
        assert (await one.elect()).code == 0
        await two.join()
        assert (await one.alter(1, 2, epoch=1, set_epoch=1)).code == 0
        await one.heartbeat(epoch=1, max_offset=5000, confirm_offset=4000)
        await two.heartbeat(epoch=1, max_offset=4000, confirm_offset=4000)
        yield one, two


async def test_status(controller: Controller, pair: tuple[FakeBroker, FakeBroker]) -> None:
    one, two = pair
    found = await told(controller.address, "status")
    assert (found["group"], found["leader"]) == ("group1", controller.address)
    (member,) = found["controllers"]
    assert member == {"id": "n0", "address": controller.address, "leads": True, "error": None}
    broker = found["brokers"]["broker-a"]
    assert (broker["master"], broker["address"], broker["masterEpoch"]) == (1, one.address, 1)
    assert broker["inSyncEpoch"] == 2
    shown = [
        (each["id"], each["address"], each["inSync"], each["alive"], each["maxOffset"], each["behindBytes"])
        for each in broker["replicas"]
    ]
    assert shown == [(1, one.address, True, True, 5000, 0), (2, two.address, True, True, 4000, 1000)]
    assert (await told(controller.address, "status", "--broker", "broker-a"))["brokers"].keys() == {
        "broker-a"
    }
    code, out, _ = await command(controller.address, "status")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert ["n0", controller.address, "yes"] in rows
    assert ["broker-a", "1", one.address, "1", "1,", "2", "2", "2", "2"] in rows
    assert ["broker-a", "2", two.address, "replica", "yes", "yes", "4000", "1000"] in rows
    code, _, errors = await command(controller.address, "status", "--broker", "broker-b")
    assert code == 1
    assert "knows no broker 'broker-b'. Known: broker-a. Did you mean broker-a?" in errors


async def test_elect(controller: Controller, pair: tuple[FakeBroker, FakeBroker]) -> None:
    one, two = pair
    found = await told(controller.address, "elect", "--broker", "broker-a", "--id", "2")
    assert found == {
        "broker": "broker-a", "master": 2, "address": two.address, "masterEpoch": 2, "before": 1
    }  # fmt: skip
    for id, said in (
        ("2", "replica 2 of broker-a is the master already, in epoch 2"),
        ("1", "replica 1 of broker-a was not elected: broker 1 cannot be elected for 'broker-a'"),
        ("7", "broker broker-a has no replica 7; there are: 1, 2"),
    ):
        code, _, errors = await command(controller.address, "elect", "--broker", "broker-a", "--id", id)
        assert code == 1
        assert said in errors
    assert await one.master() == (2, two.address, 2)


async def test_clean(controller: Controller, pair: tuple[FakeBroker, FakeBroker], clock: ManualClock) -> None:
    one, two = pair
    await clock.advance(11)
    await one.heartbeat()
    await two.heartbeat()
    words = ("clean", "--broker", "broker-a", "--yes")
    code, _, errors = await command(controller.address, *words, "--id", "2")
    assert (code, "are alive: stop them first" in errors) == (1, True)
    await two.hang_up()
    await until(lambda: len(controller.live) == 1)
    assert await told(controller.address, *words, "--id", "2") == {"broker": "broker-a", "ids": [2]}
    assert set(controller.groups["broker-a"].replicas) == {1}
    code, _, errors = await command(controller.address, *words, "--id", "2")
    assert (code, "has no replica 2; there are: 1" in errors) == (1, True)
    code, out, _ = await command(controller.address, *words, "--even-living")
    assert (code, out) == (0, "all replicas of broker-a were removed\n")
    assert controller.groups == {}
    code, out, _ = await command(controller.address, "status")
    assert (code, f"no broker is registered with the controller at {controller.address}" in out) == (0, True)


async def test_one_that_cannot_be_reached_and_one_that_does_not_lead(controller: Controller) -> None:
    seen = await told(f"127.0.0.1:1;{controller.address}", "status")
    assert seen["leader"] == controller.address
    assert {each["address"]: each["leads"] for each in seen["controllers"]} == {
        "127.0.0.1:1": None, controller.address: True
    }  # fmt: skip
    code, _, errors = await command("127.0.0.1:1", "status")
    assert (code, "cannot connect to 127.0.0.1:1" in errors) == (1, True)
    carrier = controller._carrier
    assert isinstance(carrier, EmbeddedCarrier)
    carrier._set_leader(LeadingController("n9", "127.0.0.1:1", 99))
    await until(lambda: not controller.is_leader)
    code, _, errors = await command(controller.address, "elect", "--broker", "b", "--id", "1")
    assert (code, "127.0.0.1:1" in errors) == (1, True)  # the one that is said to lead
    controller.leading = None
    code, out, errors = await command(controller.address, "status")
    assert (code, "the controllers have no leader" in errors) == (1, True)
    assert f"n0 {controller.address} no" in " ".join(out.split())
    code, _, errors = await command(controller.address, "clean", "--broker", "b", "--yes")
    assert (code, f"none of the controllers {controller.address} is the leader" in errors) == (1, True)


@pytest.mark.parametrize(
    ("peers", "ids"), [("n0:{a};n1:127.0.0.1:1;", ["n0", "n1"]), ("127.0.0.1:9880;127.0.0.1:9881;", [None])]
)
async def test_apaches_peers_of_both_kinds(peers: str, ids: list[str | None]) -> None:
    """DLedger's have ids. jRaft's are the addresses of another conversation, and are not asked."""
    handlers = RemotingHandlers()

    def metadata(request: Request[None]) -> Answer:
        text = peers.replace("{a}", server.address)
        return Answer(header=ControllerMetadataAnswer(group="g", is_leader=True, peers=text))

    handlers.add(RequestCode.CONTROLLER_GET_METADATA_INFO, metadata, None, Lane("one"))
    server = Server(handlers, host="127.0.0.1")
    await server.start()
    async with Dialer() as dialer:
        seen = await Controllers(dialer, [server.address]).survey()
    await server.close()
    assert (seen.group, seen.leader) == ("g", server.address)
    assert [one.id for one in seen.members] == ids
    assert seen.members[0].address == server.address


async def test_settings(controller: Controller) -> None:
    found = await told(controller.address, "settings")
    assert found[controller.address]["enableElectUncleanMaster"] == "false"
    changed = await told(controller.address, "settings", "--set", "enableElectUncleanMaster=true")
    assert changed == {controller.address: {"enableElectUncleanMaster": "true"}}
    assert controller.options.enable_elect_unclean_master
    code, _, errors = await command(controller.address, "settings", "--set", "noSuchKey=1")
    assert code == 1
    assert "noSuchKey is not one of its settings" in errors


async def test_who_lacks_what_was_confirmed_is_elected_by_an_operators_word_alone(
    controller: Controller,
) -> None:
    """The error and the status say how many bytes that would lose."""
    leads: dict[str, Any] = {
        "known_master_epoch": 1, "known_master_id": 1, "known_set_epoch": 2, "known_set": "1;2",
        "known_leads": True, "broker_start": 7,
    }  # fmt: skip
    async with FakeBroker(controller) as one, FakeBroker(controller) as two:
        await one.join(broker_start=7)
        assert (await one.elect()).code == 0
        await two.join(broker_start=8)
        assert (await one.alter(1, 2, epoch=1, set_epoch=1)).code == 0
        await one.heartbeat(epoch=1, max_offset=5000, confirm_offset=5000, kept_offset=5000, **leads)
        await two.hang_up()
        async with FakeBroker(controller) as again:  # its log was restored from an older copy
            again.id = 2
            assert (
                await again.register(broker_start=9, epoch=1, max_offset=4000, address=two.address)
            ).code == 0
            await one.hang_up()
            await until(lambda: controller.groups["broker-a"].master is None)
            assert controller.groups["broker-a"].confirmed == 5000
            code, out, _ = await command(controller.address, "status")
            assert code == 0
            assert "replica 2 lacks 1000 confirmed bytes, up to 5000" in out
            words = ("elect", "--broker", "broker-a", "--id", "2")
            code, _, errors = await command(controller.address, *words)
            assert (code, "2 lacks 1000 bytes of that" in errors) == (1, True)
            code, _, errors = await command(controller.address, *words, "--accept-loss", "999")
            assert code == 1
            found = await told(controller.address, *words, "--accept-loss", "1000")
            assert (found["master"], found["masterEpoch"]) == (2, 3)
            assert controller.groups["broker-a"].confirmed == 4000


async def test_a_replica_that_refuses_its_leaders_log_is_shown_with_its_reason(
    controller: Controller, pair: tuple[FakeBroker, FakeBroker]
) -> None:
    _, two = pair
    await two.heartbeat(epoch=1, max_offset=5000, follower_refusal="the leader's log differs")
    found = (await told(controller.address, "status"))["brokers"]["broker-a"]["replicas"][1]
    assert (found["refused"], found["behindBytes"]) == ("the leader's log differs", None)
    code, out, _ = await command(controller.address, "status")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert ["broker-a", "2", two.address, "refused", "yes", "yes", "5000", "-"] in rows
    assert "replica 2 does not replicate from the master: the leader's log differs" in out
