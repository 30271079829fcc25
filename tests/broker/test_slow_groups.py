"""A group that reads too slowly is disabled, and everybody who may wonder is told why and what to do."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.broker.members.groups import SLOW_CHECK_S
from kerolox.cli.main import app
from kerolox.metric_text import MetricsExporter
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.testing.broker import RunningBroker, running_broker

from .talk import Talk
from .test_metrics import get, samples

LIMIT = 10_000
SLOW = {
    "disable_slow_groups": True,
    "slow_group_bytes": LIMIT,
    "metrics_exporter": MetricsExporter.PROM,
    "metrics_port": 0,
}


async def command(running: RunningBroker, *words: str) -> str:
    def run() -> str:
        result = CliRunner().invoke(app, words, env={"NAMESRV_ADDR": running.nameserver_address})
        assert result.exit_code == 0, result.output
        return result.stdout

    return await asyncio.to_thread(run)


async def command_json(running: RunningBroker, *words: str) -> Any:
    return json.loads(await command(running, *words, "--json"))


async def fall_behind(talk: Talk, group: str) -> None:
    for number in range(20):
        await talk.send("t", b"%d" % number * 1000)
    assert (await talk.pull("t", consumer_group=group, max_msg_nums=1)).code == 0


async def test_the_whole_story(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_broker(directory=tmp_path, **SLOW) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        broker = running.broker
        await fall_behind(talk, "slow")
        assert (await talk.pull("t", consumer_group="quick")).code == 0  # to the end at once
        behind = broker.figures.stats.behind_by_group()
        assert behind["slow"] > LIMIT > behind["quick"]

        with caplog.at_level(logging.WARNING):
            assert broker.consuming.slow_groups.check() == ["slow"]  # as its timer does
        reason = f"{behind['slow']} bytes behind, the limit is {LIMIT} (consumerFallbehindThreshold)"

        # The consumer hears it.
        refused = await talk.pull("t", 0, 1, consumer_group="slow")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert refused.remark is not None
        assert refused.remark.startswith("subscription group no permission, slow")
        assert reason in refused.remark
        assert "kerolox group enable slow" in refused.remark
        assert (await talk.pull("t", consumer_group="quick")).code == 0

        # The log says it,
        (line,) = [r.getMessage() for r in caplog.records if "group_disabled" in r.getMessage()]
        assert "group='slow'" in line
        assert reason in line
        assert "kerolox group enable slow" in line

        # the metrics,
        _, body = await get(talk, "/metrics")
        found = samples(body)
        (disabled,) = found["kerolox_consumer_group_disabled"]
        assert (disabled[0]["consumer_group"], disabled[0]["reason"], disabled[1]) == ("slow", reason, 1)
        far = {labels["consumer_group"]: n for labels, n in found["kerolox_consumer_group_behind_bytes"]}
        assert far == {"slow": behind["slow"], "quick": behind["quick"]}

        # and the commands.
        told = f"slow was disabled at broker-a: {reason}. Enable it again: kerolox group enable slow"
        shown = await command(running, "group", "list")
        assert told in shown
        assert ["slow", "1", "no"] in [line.split()[:3] for line in shown.splitlines()]
        assert told in await command(running, "group", "lag", "slow")
        assert (await command_json(running, "group", "lag", "slow"))["disabled"] == {"broker-a": reason}
        assert "disabled" not in await command(running, "group", "lag", "quick")

    # It is known after a restart, too.
    async with running_broker(directory=tmp_path, **SLOW) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        rows = {row["group"]: row for row in await command_json(running, "group", "list")}
        assert rows["slow"]["disabled"] == {"broker-a": reason}
        assert not rows["slow"]["consumeEnabled"]

        assert await command(running, "group", "enable", "slow") == "slow may consume at broker-a\n"
        rows = {row["group"]: row for row in await command_json(running, "group", "list")}
        assert (rows["slow"]["consumeEnabled"], rows["slow"]["disabled"]) == (True, {})
        assert (await talk.pull("t", consumer_group="slow")).code == 0
        assert running.broker.consuming.slow_groups.check() == []
        assert (await command(running, "group", "enable", "slow")).endswith(", as before\n")


async def test_an_enabled_group_gets_a_chance_before_it_is_judged_again(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, **SLOW) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        watch = running.broker.consuming.slow_groups
        await fall_behind(talk, "slow")
        assert watch.check() == ["slow"]
        await command(running, "group", "enable", "slow")
        assert watch.check() == []  # it has not read anything yet
        await talk.pull("t", 0, 1, consumer_group="slow", max_msg_nums=1)
        assert watch.check() == ["slow"]  # but still reads too slowly


async def test_who_finds_nothing_more_is_not_behind(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, **SLOW) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await fall_behind(talk, "g")
        assert (await talk.pull("t", 0, 20, consumer_group="g")).code == ResponseCode.PULL_NOT_FOUND
        assert running.broker.consuming.slow_groups.check() == []


async def test_tools_that_give_back_all_they_were_shown_can_enable_it(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, **SLOW) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await fall_behind(talk, "slow")
        running.broker.consuming.slow_groups.check()
        shown = running.broker.membership.groups.find("slow")
        assert shown is not None
        whole = GroupConfig(group_name="slow", attributes=shown.attributes, consume_enable=True)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await dialer.call(talk.address, code, None, whole.encode())).code == 0
        after = running.broker.membership.groups.find("slow")
        assert after is not None
        assert (after.consume_enable, after.attributes) == (True, {})


async def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    options = {**SLOW, "disable_slow_groups": False}
    async with running_broker(directory=tmp_path, **options) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await fall_behind(talk, "slow")
        assert running.broker.consuming.slow_groups.check() == []
        assert SLOW_CHECK_S == 180.0  # as Apache's broker looks
