"""The broker's own settings and figures, over a connection."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.broker.options import BrokerOptions
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.bodies.stats import BrokerStats, HaStatus, TimerMetrics
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers.admin import BrokerConfigAnswer, BrokerStatsRequest
from kerolox.testing.broker import running_broker
from tests.broker.talk import Talk

# What Apache's tools take apart without looking whether it is there.
DEREFERENCED = """
    brokerVersionDesc brokerActive putTps getTransferredTps sendThreadPoolQueueSize pullThreadPoolQueueSize
    sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills
    earliestMessageTimeStamp commitLogDiskRatio timerReadBehind timerOffsetBehind timerCongestNum
    timerEnqueueTps timerDequeueTps msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
    msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow
    bootTimestamp runtime putMessageTimesTotal putMessageSizeTotal putMessageDistributeTime
    putMessageAverageSize putMessageEntireTimeMax getMessageEntireTimeMax getFoundTps getMissTps getTotalTps
    dispatchMaxBuffer consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset dispatchBehindBytes
    remainHowManyDataToFlush remainTransientStoreBufferNumbs commitLogDirCapacity sendThreadPoolQueueCapacity
    pullThreadPoolQueueCapacity EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity
""".split()  # noqa: SIM905 — a list of words is easier to read


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nkeyOfSomebodyElse=1\n")
    async with running_broker(directory=tmp_path, config_path=str(path)) as running, Dialer() as dialer:
        yield Talk(dialer, running)


async def ask(talk: Talk, code: int, header: Header | None = None, body: bytes = b"") -> Command:
    return await talk.dialer.call(talk.address, code, header, body)


async def test_figures(talk: Talk) -> None:
    await talk.send("t", b"x" * 100)
    await talk.send("t", properties={"DELAY": "18"})  # in a topic of the broker's own until it is due
    await talk.pull("t")
    talk.running.broker.tables.delay_offsets.update(1, 5)
    table = KVTable.decode((await ask(talk, RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert set(DEREFERENCED) <= table.keys()
    assert table["msgPutTotalTodayNow"] == table["msgGetTotalTodayNow"] == "1"
    assert table["putMessageTimesTotal"] == "2"
    assert table["litePullThreadPoolQueueCapacity"] == table["pullThreadPoolQueueCapacity"] == "100000"
    assert table["brokerActive"] == "true"
    assert table["brokerVersionDesc"] == "V5_5_0"
    assert table["scheduleMessageOffset_1"] == "5,0"
    assert int(table["commitLogMaxOffset"]) == int(table["putMessageSizeTotal"]) > 100
    assert int(table["earliestMessageTimeStamp"]) > 1_700_000_000_000
    assert 0 < float(table["commitLogDiskRatio"]) <= 1
    for rates in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
        assert len([float(rate) for rate in table[rates].split(" ")]) == 3


async def test_settings_are_shown(talk: Talk) -> None:
    answer = await ask(talk, RequestCode.GET_BROKER_CONFIG)
    shown = read_properties(answer.body)
    assert shown["brokerName"] == "broker-a"
    assert shown["autoCreateTopicEnable"] == "true"
    # What tools look at though it is not here: off, and the number of processors by its old name.
    assert (shown["aclEnable"], shown["defaultMessageRequestMode"]) == ("false", "PULL")
    assert shown["inSyncReplicas"] == "2"  # RocketMQ: 1, with which SYNC_MASTER waits for nobody
    assert int(shown["clientCallbackExecutorThreads"]) == os.cpu_count()
    # The ports and the address that were chosen where the options leave it open.
    host, _, port = talk.address.rpartition(":")
    assert [shown[key] for key in ("brokerIP1", "listenPort", "vipPort", "haListenPort")] == [
        host, port, str(int(port) - 2), str(int(port) + 1),
    ]  # fmt: skip
    assert DataVersion.decode(answer.header(BrokerConfigAnswer).version).timestamp > 0


async def test_a_change_is_in_force_and_kept(talk: Talk, tmp_path: Path) -> None:
    options = talk.running.broker.options
    before = DataVersion.decode((await ask(talk, RequestCode.GET_BROKER_CONFIG)).fields["version"])
    body = b"autoCreateTopicEnable=false\nwaitTimeMillsInSendQueue=300\nunknown=1\n"
    assert (await ask(talk, RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
    assert options.auto_create_topics is False
    assert talk.running.broker.lanes["send"].age_s_max == 0.3
    assert read_properties((tmp_path / "broker.conf").read_bytes()) == {
        "keyOfSomebodyElse": "1",
        "autoCreateTopicEnable": "false",
        "waitTimeMillsInSendQueue": "300",
    }
    after = DataVersion.decode((await ask(talk, RequestCode.GET_BROKER_CONFIG)).fields["version"])
    assert after.newer_than(before)


async def test_what_may_not_change_leaves_all_as_it_was(talk: Talk, tmp_path: Path) -> None:
    for body, code in (
        (b"brokerConfigPath=/x\n", ResponseCode.NO_PERMISSION),
        (b"autoCreateTopicEnable=false\nrocketmqHome=/x\n", ResponseCode.NO_PERMISSION),
        (b"configBlackList=x\n", ResponseCode.NO_PERMISSION),
        (b"autoCreateTopicEnable=false\nlistenPort=1\n", ResponseCode.SYSTEM_ERROR),
        (b"autoCreateTopicEnable=false\nfileReservedTime=soon\n", ResponseCode.SYSTEM_ERROR),
    ):
        assert (await ask(talk, RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == code, body
    assert talk.running.broker.options.auto_create_topics is True
    assert "autoCreate" not in (tmp_path / "broker.conf").read_text()


async def test_without_the_right_to_write_topics_are_not_writable(talk: Talk) -> None:
    await talk.send("t")
    assert (await ask(talk, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")).code == 0
    route = await talk.route("t")
    assert route is not None
    assert route.queue_datas[0].perm == 4


async def test_a_change_that_cannot_be_kept_is_said_so(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "broker.conf").unlink()
    (tmp_path / "broker.conf").mkdir()
    answer = await ask(talk, RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=5\n")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "nothing was changed" in (answer.remark or "")
    assert talk.running.broker.options.keep_hours == BrokerOptions().keep_hours


async def test_statistics_by_name(talk: Talk) -> None:
    await talk.send("t")
    asked = BrokerStatsRequest(stats_name="TOPIC_PUT_NUMS", stats_key="t")
    found = BrokerStats.decode((await ask(talk, RequestCode.VIEW_BROKER_STATS_DATA, asked)).body)
    assert found.stats_day is not None
    asked = BrokerStatsRequest(stats_name="TOPIC_PUT_NUMS", stats_key="other")
    answer = await ask(talk, RequestCode.VIEW_BROKER_STATS_DATA, asked)
    assert (answer.code, answer.remark) == (1, "The stats <TOPIC_PUT_NUMS> <other> not exist")


async def test_orders_and_what_is_not_there_yet(talk: Talk) -> None:
    await talk.send("t")
    for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG):
        assert (await ask(talk, code)).code == 0
    assert len(await talk.messages("t")) == 1
    status = HaStatus.decode((await ask(talk, RequestCode.GET_BROKER_HA_STATUS)).body)
    assert status.master
    assert status.master_commit_log_max_offset == talk.running.broker.store.log.max_offset
    assert (await ask(talk, RequestCode.GET_TIMER_CHECK_POINT)).body == bytes(56)
    assert TimerMetrics.decode((await ask(talk, RequestCode.GET_TIMER_METRICS)).body).timing_count == {}


async def test_the_number_of_a_leader_is_not_changed_in_silence(talk: Talk, tmp_path: Path) -> None:
    """A leader has none but 0; it was answered with success, and nothing was done."""
    answer = await ask(talk, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=7")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "leaders have the id 0" in (answer.remark or "")
    assert "brokerId" not in (tmp_path / "broker.conf").read_text()
    assert (await ask(talk, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerId=0")).code == 0
