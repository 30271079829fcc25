"""SQL92 filters at the broker: pulls, held pulls, and how long a subscription is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.consume.filters import Filters
from kerolox.broker.members import compiled_filters
from kerolox.broker.members.compiled_filters import COMPILED_MAX, CompiledFilters
from kerolox.broker.options import BrokerOptions
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.heartbeat import CheckClient, SubscriptionData
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.bodies.stats import ConsumeQueueView
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.filters.bloom import BloomFilter
from kerolox.protocol.filters.lexer import FilterError
from kerolox.protocol.filters.sql import SqlFilter
from kerolox.protocol.flags import PULL_SUSPEND
from kerolox.protocol.headers.query import QueryConsumeQueueRequest
from kerolox.protocol.record import decode_records
from kerolox.protocol.subscription import subscription, tag_hash
from kerolox.store.disk.files import Files
from kerolox.store.queue import reading
from kerolox.store.tables import FilterTable
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock

from .talk import Talk, until

DAY_MS = 86_400_000


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    async with running_broker(directory=tmp_path, property_filter=True) as running, Dialer() as dialer:
        yield Talk(dialer, running)


def sql(expression: str, version: int = 1, topic: str = "T") -> SubscriptionData:
    return subscription(topic, expression, version, "SQL92")


async def pull_sql(talk: Talk, expression: str, **fields: Any) -> Any:
    return await talk.pull("T", subscription=expression, expression_type="SQL92", **fields)


async def pull_subscribed(talk: Talk, **fields: Any) -> Any:
    return await talk.pull(
        "T", **{"sys_flag": 0, "subscription": None, "consumer_group": "g", "sub_version": 1, **fields}
    )


def bodies(answer: Any) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]


async def test_a_pull_gets_what_its_condition_takes(talk: Talk) -> None:
    for number in range(20):
        await talk.send("T", b"%d" % number, {"n": str(number), "even": str(number % 2 == 0).lower()})
    answer = await pull_sql(talk, "n BETWEEN 5 AND 9 AND even = TRUE")
    assert (answer.code, answer.remark, bodies(answer)) == (0, "FOUND", [b"6", b"8"])
    assert answer.fields["nextBeginOffset"] == "20"
    nothing = await pull_sql(talk, "missing > 5")
    assert (nothing.code, nothing.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert nothing.fields["nextBeginOffset"] == "20"


async def test_a_broken_condition_is_refused_with_its_place(talk: Talk) -> None:
    await talk.send("T")
    answer = await pull_sql(talk, "a > 'x'")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark is not None
    assert answer.remark.startswith("parse the consumer's subscription failed")
    assert "column 5" in answer.remark
    other = await talk.pull("T", subscription="a", expression_type="XPATH")
    assert other.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    async def check(wanted: SubscriptionData) -> Any:
        body = CheckClient(client_id="c", group="g", subscription_data=wanted).encode()
        return await talk.dialer.call(talk.address, RequestCode.CHECK_CLIENT_CONFIG, None, body)

    assert (await check(sql("a > 5"))).code == ResponseCode.SUCCESS
    refused = await check(sql("a >"))
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert refused.remark.startswith("invalid condition at line 1, column 4: ")


async def test_what_heartbeats_subscribed_by_condition(talk: Talk) -> None:
    await talk.send("T", b"1", {"a": "1"})
    await talk.send("T", b"7", {"a": "7"})
    await talk.heartbeat("g", sql("a > 5"))
    assert bodies(await pull_subscribed(talk)) == [b"7"]
    # What the members had told is newer than what the filter was made of only if a heartbeat broke it.
    await talk.heartbeat("g", sql("a >", version=2))
    answer = await pull_subscribed(talk, sub_version=2)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert answer.remark == "The broker's consumer filter data is not exist!Your expression may be wrong!"
    await talk.heartbeat("g", sql("a < 5", version=3))
    assert bodies(await pull_subscribed(talk, sub_version=3)) == [b"1"]
    broker = talk.running.broker
    data = broker.consuming.filters.table.find("T", "g")
    assert data is not None
    members = broker.membership.members.members("g")
    assert members is not None
    members.subscriptions["T"] = sql("a < 5", version=4)
    answer = await pull_subscribed(talk, sub_version=4)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST


async def test_filters_that_are_switched_off(talk: Talk) -> None:
    await talk.send("T")
    talk.running.broker.options.property_filter = False
    for answer in (await pull_sql(talk, "a > 5"), await pull_sql(talk, "a >")):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("The broker does not support consumer to filter message by SQL92")
    await talk.heartbeat("g", sql("a >"), sql("a > 5", topic="U"))
    assert (await pull_subscribed(talk)).code == ResponseCode.FILTER_DATA_NOT_EXIST
    await talk.heartbeat("g", sql("a > 5", version=2))
    assert (await pull_subscribed(talk)).code == ResponseCode.SYSTEM_ERROR


async def test_a_held_pull_sleeps_until_its_message_comes(talk: Talk) -> None:
    waiting = talk.running.broker.consuming.waits
    await talk.send("T", properties={"a": "1"})
    await talk.heartbeat("g", sql("a > 5"))
    held = asyncio.create_task(pull_subscribed(talk, offset=1, sys_flag=PULL_SUSPEND))
    await until(lambda: waiting.held == 1)
    for value in ("1", "text", "5"):
        await talk.send("T", properties={"a": value})
    await talk.send("T")
    await asyncio.sleep(0.05)
    assert waiting.held == 1
    assert not held.done()
    await talk.send("T", b"at last", {"a": "6"})
    answer = await held
    assert (answer.code, bodies(answer)) == (0, [b"at last"])


async def test_messages_that_failed_are_filtered_where_that_is_wanted(talk: Talk) -> None:
    broker = talk.running.broker
    retry = "%RETRY%g"
    await talk.heartbeat("g", sql("a > 5"), sql("TRUE", topic=retry))
    for value in ("1", "7"):
        await talk.send(retry, value.encode(), {"a": value, "RETRY_TOPIC": "T"})
    await talk.send(retry, b"of another topic", {"a": "1", "RETRY_TOPIC": "U"})

    async def pull_retries() -> list[bytes]:
        answer = await talk.pull(retry, sys_flag=0, subscription=None, consumer_group="g", sub_version=1)
        return bodies(answer)

    assert await pull_retries() == [b"1", b"7", b"of another topic"]
    broker.options.filter_retries = True
    assert await pull_retries() == [b"7", b"of another topic"]


def saved(directory: Path) -> Any:
    (path,) = directory.rglob("consumerFilter.json")
    return json.loads(path.read_text())


async def test_subscriptions_outlive_the_broker(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, property_filter=True) as running, Dialer() as dialer:
        await Talk(dialer, running).heartbeat("g", sql("a > 5"))
    data = saved(tmp_path)["filterDataByTopic"]["T"]["groupFilterData"]["g"]
    assert data["expression"] == "a > 5"
    assert data["bloomFilterData"]["bitNum"] == 112
    assert len(data["bloomFilterData"]["bitPos"]) == 3
    async with running_broker(directory=tmp_path, property_filter=True) as running, Dialer() as dialer:
        known = running.broker.consuming.filters.table.find("T", "g")
        assert known is not None
        assert known.dead  # until a heartbeat says otherwise
        await Talk(dialer, running).heartbeat("g", sql("a > 5"))
        again = running.broker.consuming.filters.table.find("T", "g")
        assert again is not None
        assert not again.dead
        assert again.born_time == known.born_time


# --- the bits of messages --------------------------------------------------------------------------------


@pytest.fixture
async def extended(tmp_path: Path) -> AsyncIterator[Talk]:
    options = {
        "property_filter": True, "filter_bits": True, "queue_extension": True,
        "queue_extension_file_bytes": 4096,
    }  # fmt: skip
    async with running_broker(directory=tmp_path, **options) as running, Dialer() as dialer:
        yield Talk(dialer, running)


async def queue_view(talk: Talk, group: str) -> ConsumeQueueView:
    header = QueryConsumeQueueRequest(topic="T", queue_id=0, index=0, count=100, consumer_group=group)
    answer = await talk.dialer.call(talk.address, RequestCode.QUERY_CONSUME_QUEUE, header)
    return ConsumeQueueView.decode(answer.body)


async def test_bits_tell_which_filters_take_a_message(extended: Talk) -> None:
    talk = extended
    broker = talk.running.broker
    shown = await talk.dialer.call(talk.address, RequestCode.GET_BROKER_CONFIG)
    assert read_properties(shown.body)["bitMapLengthConsumeQueueExt"] == "112"
    await talk.send("T", b"early", {"a": "1", "TAGS": "x"})
    await talk.heartbeat("g", sql("a > 5"))
    born = broker.consuming.filters.table.find("T", "g")
    assert born is not None
    await until(lambda: broker.clock.wall_ms() > born.born_time)
    await talk.send("T", b"no", {"a": "1"})
    await talk.send("T", b"yes", {"a": "6"})
    view = await queue_view(talk, "g")
    assert view.filter_data is not None
    assert json.loads(view.filter_data)["expression"] == "a > 5"
    early, no, yes = view.queue_data or ()
    # Of what came before the subscription the bits say nothing.
    assert [entry.eval for entry in (early, no, yes)] == [True, False, True]
    assert early.tags_code == tag_hash("x")
    assert (early.bit_map, no.bit_map is None) == (None, False)
    places = born.bloom_filter_data
    assert places is not None
    digits = (yes.bit_map or "").replace("\n", "")[::-1]
    assert {number for number, digit in enumerate(digits) if digit == "1"} == set(places.bit_pos)
    assert "1" not in (no.bit_map or "")
    assert json.loads(yes.extend_data_json or "")["size"] == 34
    assert bodies(await pull_subscribed(talk)) == [b"yes"]
    tagged = await talk.pull("T", subscription="x")
    assert bodies(tagged) == [b"early"]


async def test_a_pull_believes_the_bits(extended: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = extended
    broker = talk.running.broker
    await talk.heartbeat("g", sql("a > 5"))
    now_ms = broker.clock.wall_ms()
    await until(lambda: broker.clock.wall_ms() > now_ms)
    for value in ("1", "6", "2"):
        await talk.send("T", value.encode(), {"a": value})
    looked_into: list[bytes] = []
    filters = broker.consuming.filters
    before = filters.subscribed_filter

    def subscribed_filter(*args: Any) -> Any:
        def by_record(data: bytes, at: int, size: int) -> bool:
            looked_into.append(data[at : at + size])
            return True

        return before(*args)._replace(by_record=by_record)

    monkeypatch.setattr(filters, "subscribed_filter", subscribed_filter)
    assert bodies(await pull_subscribed(talk)) == [b"6"]
    assert len(looked_into) == 1


# --- how long they are kept ------------------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def filters(tmp_path: Path, clock: ManualClock) -> Filters:
    bloom = BloomFilter(20, 32)
    table = FilterTable(Files(), tmp_path, clock=clock, bits=bloom.bits, places=bloom.places)
    return Filters(table, bloom, BrokerOptions(), clock)


def known(filters: Filters, topic: str = "T") -> Any:
    data = filters.table.find(topic, "g")
    assert data is not None
    return data


def test_versions_only_grow(filters: Filters, clock: ManualClock) -> None:
    filters.subscribed("g", [sql("a > 5", 5)])
    first = known(filters)
    assert (first.client_version, first.dead, first.born_time) == (5, False, clock.wall_ms())
    clock.step_wall(1000)
    filters.subscribed("g", [sql("a > 6", 5)])
    filters.subscribed("g", [sql("a > 7", 4)])
    assert known(filters) == first
    filters.subscribed("g", [sql("a > 5", 6)])
    assert (known(filters).client_version, known(filters).born_time) == (6, first.born_time)
    filters.subscribed("g", [sql("a > 6", 7)])
    assert (known(filters).expression, known(filters).born_time) == ("a > 6", clock.wall_ms())
    filters.subscribed("g", [sql("a >", 8)])
    assert filters.table.find("T", "g") is None


def test_tags_are_not_kept_here(filters: Filters) -> None:
    filters.subscribed("g", [subscription("T", "a || b", 1), sql("a > 5", topic="U")])
    assert list(filters.table.by_topic) == ["U"]


def test_topics_no_longer_named_die_and_come_back(filters: Filters, clock: ManualClock) -> None:
    filters.subscribed("g", [sql("a > 5"), sql("b > 5", topic="U")])
    clock.step_wall(1000)
    filters.subscribed("g", [sql("a > 5")])
    assert not known(filters).dead
    assert known(filters, "U").dead_time == clock.wall_ms()
    filters.subscribed("g", [sql("a > 5"), sql("b > 5", topic="U")])
    assert not known(filters, "U").dead
    clock.step_wall(1000)
    filters.deserted("g")
    assert known(filters).dead
    assert known(filters, "U").dead
    filters.subscribed("g", [sql("a > 5", 2)])
    assert not known(filters).dead


async def test_after_a_day_they_are_forgotten(filters: Filters, clock: ManualClock) -> None:
    filters.start()
    filters.subscribed("g", [sql("a > 5")])
    clock.step_wall(1000)
    filters.deserted("g")
    clock.step_wall(DAY_MS - 20_000)
    await clock.advance(11)
    assert known(filters).dead
    filters.table.changed = False
    await clock.advance(20)
    assert filters.table.by_topic == {}
    assert filters.table.changed
    filters.close()


async def test_a_long_condition_is_compiled_while_others_are_served(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread waits until another client was answered: on the loop that would wait for ever."""
    others_were_served = threading.Event()
    compile_filter = compiled_filters.compile_filter

    def slowly(expression: str) -> SqlFilter:
        assert others_were_served.wait(60)
        return compile_filter(expression)

    monkeypatch.setattr(compiled_filters, "compile_filter", slowly)
    await talk.send("T", b"1", {"a": "1"})
    await talk.send("T", b"7", {"a": "7"})
    listed = ",".join(f"'{number}'" for number in range(5, 2000))
    pulling = asyncio.ensure_future(pull_sql(talk, f"a IN ({listed})", timeout_s=60.0))
    beating = asyncio.ensure_future(talk.heartbeat("g", sql(f"a NOT IN ({listed})")))
    assert bodies(await talk.pull("T")) == [b"1", b"7"]
    assert not pulling.done()
    others_were_served.set()
    assert bodies(await pulling) == [b"7"]
    assert (await beating).code == ResponseCode.SUCCESS
    assert bodies(await pull_subscribed(talk)) == [b"1"]


async def test_a_condition_above_its_limits_is_refused(talk: Talk) -> None:
    await talk.send("T")
    answer = await pull_sql(talk, "a > " + "-" * 200_000)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark is not None
    assert "200004 characters, a condition has at most 65536" in answer.remark


def test_what_is_kept_compiled_is_bounded() -> None:
    known = CompiledFilters()
    for number in range(COMPILED_MAX + 10):
        known.get(("SQL92", f"a = {number}"))
    assert len(known._known) == COMPILED_MAX
    known.close()


def test_what_is_kept_compiled_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions of 50 kB took 44 bytes of memory a character: 800 MB, with the answers they remember."""
    bytes_max = 4 << 20
    monkeypatch.setattr(compiled_filters, "COMPILED_BYTES_MAX", bytes_max)
    known = CompiledFilters()
    tracemalloc.start()
    try:
        for number in range(12):
            listed = ",".join(f"'{number}-{item}'" for item in range(2000))
            known.get(("SQL92", f"a IN ({listed})"))
            joined = " OR ".join(f"p{number}_{item} > {item}" for item in range(300))
            known.get(("SQL92", joined))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 1 < len(known._known) < 24
    assert taken < known._size_bytes <= bytes_max
    for number in range(80):
        with contextlib.suppress(FilterError):
            known.get(("SQL92", "a > '" + "x" * 60_000 + f"'{number}"))
    assert known._size_bytes <= bytes_max
    for found in known._known.values():
        assert getattr(found, "__traceback__", None) is None  # with the frames of the parser
    known.close()


async def test_conditions_of_all_groups_are_bounded(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kerolox.broker.consume.filters.FILTERS_CHARACTERS_MAX", 1000)
    await talk.send("T")
    table = talk.running.broker.consuming.filters.table
    for number in range(4):
        await talk.heartbeat(f"g{number}", sql(f"a = '{'1' * 300}'"))
    assert len(table.by_topic["T"]) == 3
    assert (
        table.characters == sum(len(data.expression or "") for data in table.by_topic["T"].values()) <= 1000
    )


async def test_one_pull_asks_so_much_of_a_condition(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that never repeat, so that each message is a question of its own."""
    monkeypatch.setattr(reading, "FILTER_WORK_MAX", 20_000)
    for number in range(30):
        await talk.send("T", b"%d" % number, {"a": str(number)})
    condition = " OR ".join(f"a = {number}" for number in (25, *range(1000, 1020)))
    offset = pulls = 0
    found: list[bytes] = []
    while offset < 30:
        answer = await pull_sql(talk, condition, offset=offset)
        found += bodies(answer) if answer.code == 0 else []
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])
        pulls += 1
    assert found == [b"25"]
    assert pulls > 5
