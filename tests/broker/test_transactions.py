"""Transactions over real sockets: half messages, their end, questions to producers."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import msgspec
import pytest

from kerolox.broker.transactions import finished_half_messages as ended
from kerolox.observers import Observers
from kerolox.protocol import properties as packed
from kerolox.protocol import reserved
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.transaction import ResumeCheckRequest
from kerolox.protocol.record import decode_record
from kerolox.store.errors import Operation, StoreError
from kerolox.store.options import FlushMode
from kerolox.store.state import Obstacle
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

from .talk import BORN_MS, until
from .transaction_kit import COMMIT, GROUP, ROLLBACK, TOPIC, UNKNOWN, scene

# --- half messages ---------------------------------------------------------------------------------------


async def test_a_half_message_is_stored_apart(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare(b"pay", {"UNIQ_KEY": "U1", "a": "b"}, queue_id=2, flag=7)
        assert half.answer.fields["queueId"] == "2"
        assert half.transaction_id == "U1"
        assert await producer.messages(TOPIC, 2) == []
        (stored,) = await producer.halves()
        assert (stored.topic, stored.queue_id, stored.body, stored.flag) == (
            reserved.HALF_TOPIC,
            0,
            b"pay",
            7,
        )
        assert (stored.queue_offset, stored.physical_offset) == (half.queue_offset, half.place)
        assert stored.sys_flag & 0xC == 0
        assert stored.properties.items() >= {
            "REAL_TOPIC": TOPIC, "REAL_QID": "2", "__transactionId__": "U1", "TRAN_MSG": "true",
            "PGROUP": GROUP, "UNIQ_KEY": "U1", "a": "b",
        }.items()  # fmt: skip
        assert s.broker.tables.transaction_counts.counts[TOPIC].count == 1


async def test_transactions_can_be_refused(tmp_path: Path) -> None:
    async with scene(tmp_path, reject_transactions=True) as s:
        producer = await s.producer()
        answer = await producer.send(TOPIC, properties={"TRAN_MSG": "TRUE", "PGROUP": GROUP})
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark is not None
        assert "sending transaction message is forbidden" in answer.remark
        assert (await producer.send(TOPIC, properties={"TRAN_MSG": "false"})).code == 0


async def test_what_only_looks_like_a_half_message_is_stored_as_it_is(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        await producer.send(TOPIC, properties={"TRAN_MSG": "yes"})
        await producer.send(TOPIC, properties={"NOT_TRAN_MSG": "true"})
        assert len(await producer.orders()) == 2
        # Old clients send back what they could not consume with the mark still on it.
        answer = await producer.send(TOPIC, properties={"TRAN_MSG": "true", "DELAY": "1"}, reconsume_times=1)
        assert answer.code == 0
        assert await producer.halves() == []


async def test_a_delay_begins_when_the_transaction_is_committed(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare(b"later", {"DELAY": "3"})
        assert [each.body for each in await producer.halves()] == [b"later"]
        assert (await producer.end(half)).code == 0
        assert await producer.orders() == []
        (parked,) = await producer.messages("SCHEDULE_TOPIC_XXXX", 2)
        assert (parked.properties["REAL_TOPIC"], parked.prepared_offset) == (TOPIC, half.place)


# --- the end ---------------------------------------------------------------------------------------------


async def test_a_committed_message_arrives(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare(b"pay", {"TAGS": "t"}, flag=9, sys_flag=4 | 1, reconsume_times=2)
        s.clock.step_wall(7000)
        assert (await producer.end(half)).code == 0
        (order,) = await producer.orders()
        (stored,) = await producer.halves()
        assert (order.body, order.flag, order.tag, order.reconsume_times) == (b"pay", 9, "t", 2)
        assert (order.sys_flag, order.prepared_offset) == (8 | 1, half.place)
        assert (order.born_timestamp, order.born_host) == (stored.born_timestamp, stored.born_host)
        assert stored.properties == {**order.properties, "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
        assert await producer.ops() == [b"%d," % half.queue_offset]
        (op,) = await producer.messages(reserved.HALF_DONE_TOPIC)
        assert op.properties == {"TAGS": "d", "WAIT": "true"}
        assert s.broker.tables.transaction_counts.counts[TOPIC].count == 0


async def test_a_rolled_back_message_does_not(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare()
        assert (await producer.end(half, ROLLBACK)).code == 0
        assert await producer.orders() == []
        assert await producer.ops() == [b"0,"]
        assert s.broker.tables.transaction_counts.counts[TOPIC].count == 0


async def test_the_first_outcome_stands_and_only_the_latest_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended, "LATELY_COUNT_MAX", 2)
    async with scene(tmp_path) as s:
        producer = await s.producer()
        halves = [await producer.prepare(b"%d" % number) for number in range(5)]
        for half in halves:
            assert (await producer.end(half)).code == 0
            assert (await producer.end(half, ROLLBACK)).code == 0  # too late
        assert [order.body for order in await producer.orders()] == [b"0", b"1", b"2", b"3", b"4"]
        known = s.broker.transactions.finished
        assert list(known._in_order) == sorted(known._lately) == [half.queue_offset for half in halves[-2:]]


async def test_an_unknown_outcome_is_not_answered_and_changes_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare()
        for outcome in (UNKNOWN, 4, 99):
            header = producer.end_header(outcome, half.queue_offset, half.place)
            with pytest.raises(Exception, match="no answer"):
                await producer.dialer.call(
                    producer.address, RequestCode.END_TRANSACTION, header, timeout_s=0.2
                )
        assert await producer.ops() == []


async def test_what_a_producer_tells_must_fit_the_half_message(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare()
        plain = await producer.send(TOPIC, b"plain")
        wrong = [
            ({"producer_group": "other"}, "The producer group wrong"),
            ({"queue_offset": 17}, "The transaction state table offset wrong"),
            ({"place": half.place + 1}, "Find prepared transaction message failed"),
            ({"place": 1 << 40}, "Find prepared transaction message failed"),
            ({"place": -1}, "Find prepared transaction message failed"),
        ]
        for fields, remark in wrong:
            for outcome in (COMMIT, ROLLBACK):
                answer = await producer.end(half, outcome, **fields)
                assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        place = int(plain.fields["msgId"][16:], 16)
        answer = await producer.end(half, place=place)
        assert answer.remark == "Find prepared transaction message failed"
        assert [order.body for order in await producer.orders()] == [b"plain"]
        assert await producer.ops() == []


async def test_a_producer_that_needed_longer_than_it_said_must_wait_to_be_asked(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "10"})
        s.clock.step_wall(10_001)
        answer = await producer.end(half)
        assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, None)
        assert (await producer.end(half, check=True)).code == 0
        assert len(await producer.orders()) == 1


async def test_a_slave_ends_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare()
        await s.broker.leadership.follow("another one leads")
        assert (await producer.end(half)).code == ResponseCode.SLAVE_NOT_AVAILABLE
        await s.clock.advance(90)
        assert producer.asked == []


@pytest.mark.parametrize("flush_mode", list(FlushMode))
@pytest.mark.parametrize("where", ["known", "in memory", "on disk"])
async def test_half_messages_are_found_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, flush_mode: FlushMode
) -> None:
    def not_read(offset: int, size: int) -> bytes:
        raise AssertionError("it is known, and read nevertheless")

    async with scene(tmp_path, flush_mode=flush_mode) as s:
        producer = await s.producer()
        halves = [await producer.prepare(b"%d" % number) for number in range(3)]
        first, second, third = halves
        with monkeypatch.context() as patch:
            if where == "known":
                patch.setattr(s.broker.store.log, "read_hot", not_read)
            else:
                for half in halves:
                    s.broker.transactions.recent.forget(half.place)
            if where == "on disk":
                patch.setattr(s.broker.store.log, "read_hot", lambda offset, size: None)
            assert (await producer.end(first)).code == 0
            assert (await producer.end(second, ROLLBACK)).code == 0
            assert (await producer.end(third, producer_group="other")).code == ResponseCode.SYSTEM_ERROR
            s.broker.store.state.set(Obstacle.DISK_FULL, "test")
            assert (await producer.end(third)).code == ResponseCode.SERVICE_NOT_AVAILABLE
            s.broker.store.state.clear(Obstacle.DISK_FULL)
        assert [order.body for order in await producer.orders()] == [b"0"]


@pytest.mark.parametrize("record_crc", [False, True])
async def test_what_is_committed_is_the_same_whether_its_half_message_was_known_or_read(
    tmp_path: Path, record_crc: bool
) -> None:
    async with scene(tmp_path, record_crc=record_crc) as s:
        producer = await s.producer()
        own = {"UNIQ_KEY": "U", "TAGS": "t", "DELAYED": "0", "REAL_TOPIC": "elsewhere"}
        for is_read in (False, True):
            half = await producer.prepare(b"pay", own, flag=9, sys_flag=4 | 1, reconsume_times=2)
            if is_read:
                s.broker.transactions.recent.forget(half.place)
            assert (await producer.end(half)).code == 0
        known, read = [
            msgspec.structs.replace(
                each,
                queue_offset=0,
                physical_offset=0,
                prepared_offset=0,
                packed_properties=packed.remove(each.packed_properties, packed.AT_CRC32),
            )
            for each in await producer.orders()
        ]
        assert known == read
        assert known.tag == "t"


async def test_a_half_message_whose_file_is_gone_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare(b"pay")
        monkeypatch.setattr(type(s.broker.store.log), "min_offset", half.place + 1)
        monkeypatch.setattr(s.broker.store.log, "read_hot", lambda offset, size: None)
        answer = await producer.end(half)
        assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")


async def test_an_outcome_counts_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare()
        answers = await asyncio.gather(
            *(producer.end(half, outcome) for outcome in (COMMIT, COMMIT, ROLLBACK))
        )
        assert [answer.code for answer in answers] == [0, 0, 0]
        assert len(await producer.orders()) == 1
        assert await producer.ops() == [b"0,"]


async def test_outcomes_that_come_together_are_noted_together(tmp_path: Path) -> None:
    async with scene(tmp_path, op_bytes_max=32) as s:
        producer = await s.producer()
        halves = [await producer.prepare(b"%d" % number) for number in range(40)]
        await asyncio.gather(*(producer.end(half) for half in halves))
        assert len(await producer.orders()) == 40
        ops = await producer.ops()
        assert 4 <= len(ops) < 40
        assert all(len(op) <= 32 for op in ops)
        assert sorted(int(word) for op in ops for word in op.split(b",") if word) == list(range(40))


async def test_a_commit_that_could_not_be_stored_is_asked_for_later(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare(b"pay")
        s.broker.store.state.set(Obstacle.DISK_FULL, "test")
        assert (await producer.end(half)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        s.broker.store.state.clear(Obstacle.DISK_FULL)
        producer.outcome = COMMIT
        await s.round()
        await until(lambda: len(producer.asked) == 1)
        await until(lambda: s.broker.tables.transaction_counts.counts[TOPIC].count == 0)
        assert [order.body for order in await producer.orders()] == [b"pay"]


# --- questions -------------------------------------------------------------------------------------------


async def test_a_producer_is_asked_about_a_copy(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare(b"pay", {"UNIQ_KEY": "U1"}, queue_id=3, flag=5)
        producer.outcome = COMMIT
        await s.round()
        await until(lambda: producer.asked)
        (asked,) = producer.asked
        told = asked.header
        assert (told.topic, told.tran_state_table_offset) == (reserved.HALF_TOPIC, 1)
        assert told.commit_log_offset > half.place
        assert (told.msg_id, told.transaction_id, told.broker_name) == ("U1", "U1", "broker-a")
        assert told.offset_msg_id is not None
        assert told.offset_msg_id.endswith(f"{told.commit_log_offset:016X}")
        record = decode_record(asked.body)
        assert (record.topic, record.queue_id, record.body, record.size) == (
            TOPIC,
            3,
            b"pay",
            len(asked.body),
        )
        assert (record.queue_offset, record.physical_offset) == (1, told.commit_log_offset)
        assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
        await until(lambda: s.broker.tables.transaction_counts.counts[TOPIC].count == 0)
        (order,) = await producer.messages(TOPIC, 3)
        assert (order.flag, order.prepared_offset) == (5, told.commit_log_offset)
        # The first was done with when the copy was made, the copy when it was committed.
        assert await producer.ops() == [b"0,", b"1,"]
        await s.round()
        assert s.progress == (2, 2)
        assert len(producer.asked) == 1


async def test_the_young_are_left_alone(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        await producer.prepare(b"old")
        await producer.prepare(b"young", born_timestamp=BORN_MS + 25_000)
        await s.round()
        await until(lambda: producer.asked)
        assert [decode_record(each.body).body for each in producer.asked] == [b"old"]
        assert s.progress[0] == 1
        await s.round()
        await until(lambda: len(producer.asked) == 3)
        assert {decode_record(each.body).body for each in producer.asked[1:]} == {b"old", b"young"}


async def test_another_producer_of_the_group_may_answer(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer("payer-1")
        await producer.prepare(b"pay")
        await producer.dialer.close()
        await until(lambda: GROUP not in s.broker.membership.members.producers)
        await s.round()  # nobody is there
        other = await s.producer("payer-2")
        other.outcome = COMMIT
        await s.round()
        await until(lambda: s.broker.tables.transaction_counts.counts[TOPIC].count == 0)
        assert [order.body for order in await other.orders()] == [b"pay"]
        assert decode_record(other.asked[0].body).properties["TRANSACTION_CHECK_TIMES"] == "2"


async def test_a_transaction_is_given_up_after_too_many_questions(tmp_path: Path) -> None:
    async with scene(tmp_path, transaction_checks_max=2) as s:
        producer = await s.producer()
        await producer.prepare(b"pay", {"UNIQ_KEY": "U1"}, flag=3)
        for count in (1, 2):
            await s.round()
            await until(lambda count=count: len(producer.asked) == count)
        await s.round()
        (given_up,) = await producer.messages(reserved.CHECKED_TOO_OFTEN_TOPIC)
        assert (given_up.body, given_up.flag) == (b"pay", 3)
        assert given_up.properties.items() >= {"REAL_TOPIC": TOPIC, "TRANSACTION_CHECK_TIMES": "2"}.items()
        assert s.broker.tables.transaction_counts.counts[TOPIC].count == 0
        await s.round()
        assert len(producer.asked) == 2
        assert s.progress == (3, 3)
        # Somebody wants it checked again.
        answer = await producer.dialer.call(
            producer.address,
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            ResumeCheckRequest(msg_id=given_up.offset_id),
        )
        assert answer.code == 0
        producer.outcome = COMMIT
        await s.round()
        await until(lambda: len(producer.asked) == 3)
        await until(lambda: s.broker.tables.transaction_counts.counts[TOPIC].count == 0)
        assert [order.body for order in await producer.orders()] == [b"pay"]


async def test_messages_older_than_the_log_keeps_them_are_given_up(tmp_path: Path) -> None:
    async with scene(tmp_path, keep_hours=1) as s:
        producer = await s.producer()
        await producer.prepare(born_timestamp=BORN_MS - 3_600_000)
        await s.round()
        assert len(await producer.messages(reserved.CHECKED_TOO_OFTEN_TOPIC)) == 1
        assert producer.asked == []


async def test_a_resumed_message_must_exist(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        for text in (None, "", "zz", "0" * 32):
            answer = await producer.dialer.call(
                producer.address, RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckRequest(msg_id=text)
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_immunity_puts_the_question_off_however_long(tmp_path: Path) -> None:
    async with scene(tmp_path, transaction_checks_max=2) as s:
        producer = await s.producer()
        half = await producer.prepare(b"slow", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "200"})
        await producer.prepare(b"quick")
        await s.round()
        await until(lambda: producer.asked)
        assert [decode_record(each.body).body for each in producer.asked] == [b"quick"]
        for _ in range(4):  # more often than a transaction may be asked about
            await s.round()
        copies = [each for each in await producer.halves() if each.body == b"slow"]
        assert len(copies) == 6
        assert {each.properties["TRAN_PREPARED_QUEUE_OFFSET"] for each in copies[1:]} == {"0"}
        assert all("TRANSACTION_CHECK_TIMES" not in each.properties for each in copies)
        # Its producer knows it by its first place.
        assert (await producer.end(half)).code == 0
        producer.asked.clear()
        for _ in range(4):
            await s.round()
        assert [each for each in producer.asked if decode_record(each.body).body == b"slow"] == []
        assert [order.body for order in await producer.orders()] == [b"slow"]


async def test_an_answer_to_an_earlier_question_ends_the_newest_copy(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        half = await producer.prepare(b"pay")
        for count in (1, 2):
            await s.round()
            await until(lambda count=count: len(producer.asked) == count)
        first, second = [each.header for each in producer.asked]
        for told in (first, second):
            answer = await producer.end(
                half, check=True, queue_offset=told.tran_state_table_offset, place=told.commit_log_offset
            )
            assert answer.code == 0
        assert (await producer.end(half)).code == 0  # and the producer itself, at last
        assert [order.body for order in await producer.orders()] == [b"pay"]
        await s.round()
        assert len(producer.asked) == 2
        assert s.progress[0] == 3


async def test_a_message_from_the_future_is_asked_about(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        await producer.prepare(born_timestamp=BORN_MS + 10**9)
        await s.round()
        await until(lambda: producer.asked)


async def test_many_open_transactions_are_asked_about_in_one_round(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        halves = [await producer.prepare(b"%d" % number) for number in range(100)]
        for half in halves[::2]:
            await producer.end(half)
        producer.outcome = COMMIT
        await s.round()
        await until(lambda: len(producer.asked) == 50)
        await until(lambda: s.broker.tables.transaction_counts.counts[TOPIC].count == 0)
        assert sorted(int(order.body) for order in await producer.orders()) == list(range(100))
        await s.round()
        assert s.progress[0] == 150
        assert len(producer.asked) == 50


# --- restarts --------------------------------------------------------------------------------------------


async def test_open_and_ended_transactions_survive_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(BORN_MS)
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        ended = await producer.prepare(b"ended")
        await producer.prepare(b"open")
        await producer.end(ended)
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        assert s.broker.tables.transaction_counts.counts[TOPIC].count == 1
        producer.outcome = COMMIT
        await s.round()
        await until(lambda: s.broker.tables.transaction_counts.counts[TOPIC].count == 0)
        assert [order.body for order in await producer.orders()] == [b"ended", b"open"]
        assert len(producer.asked) == 1
        await s.round()
        assert s.progress == (3, 3)
    async with scene(tmp_path, clock) as s:
        assert s.progress == (3, 3)
        await s.round()
        assert s.progress == (3, 3)


async def test_progress_that_was_not_saved_lets_nothing_be_asked_twice(tmp_path: Path) -> None:
    """What was put back is noted, so going through it again makes no second copy."""
    clock = ManualClock(BORN_MS)
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        for number in range(5):
            await producer.prepare(b"%d" % number)
        await s.round()
        await until(lambda: len(producer.asked) == 5)
        s.broker.tables.offsets.remove_group("CID_RMQ_SYS_TRANS")
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        producer.outcome = COMMIT
        await s.round()
        await until(lambda: s.broker.tables.transaction_counts.counts[TOPIC].count == 0)
        assert sorted(order.body for order in await producer.orders()) == [b"%d" % n for n in range(5)]
        assert len(producer.asked) == 5


async def test_a_commit_whose_note_is_missing_is_found_at_the_start(tmp_path: Path) -> None:
    """A write that was torn, or a broker of Apache's, which notes ends up to three seconds later."""
    clock = ManualClock(BORN_MS)
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        noted, unnoted, rolled_back, _ = [await producer.prepare(b"%d" % number) for number in range(4)]
        await producer.end(noted)
        s.broker.write_path.intake.before = Observers("log is written")
        await producer.end(unnoted)
        await producer.end(rolled_back, ROLLBACK)
        assert await producer.ops() == [b"0,"]
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        assert await producer.ops() == [b"0,", b"1,"]
        producer.outcome = ROLLBACK
        await s.round()
        await until(lambda: len(producer.asked) == 2)
        assert [decode_record(each.body).body for each in producer.asked] == [b"2", b"3"]
        assert [order.body for order in await producer.orders()] == [b"0", b"1"]


async def test_progress_beyond_the_queue_is_taken_back(tmp_path: Path) -> None:
    """The end of the log was lost with the power, the offsets were not."""
    clock = ManualClock(BORN_MS)
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        await producer.prepare(b"first")
        s.broker.tables.offsets.commit(reserved.HALF_TOPIC, "CID_RMQ_SYS_TRANS", 0, 1000)
        s.broker.tables.offsets.commit(reserved.HALF_DONE_TOPIC, "CID_RMQ_SYS_TRANS", 0, 1000)
    async with scene(tmp_path, clock) as s:
        producer = await s.producer()
        half = await producer.prepare(b"second")
        assert (await producer.end(half)).code == 0
        await producer.prepare(b"third")
        await s.round()
        await until(lambda: len(producer.asked) == 1)
        assert decode_record(producer.asked[0].body).body == b"third"


async def test_progress_is_not_saved_before_what_it_rests_on_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path, timer_wheel=False) as s:  # which would not go on without a flush
        producer = await s.producer()
        await producer.prepare()

        async def fail() -> None:
            raise StoreError("the disk does not flush")

        with monkeypatch.context() as patch:
            patch.setattr(s.broker.store.flusher, "flush_all", fail)
            await s.round()
            await until(lambda: len(producer.asked) == 1)
            assert s.progress == (-1, -1)
        await s.round()
        assert s.progress == (2, 2)


async def test_tools_see_how_many_half_messages_were_looked_at(tmp_path: Path) -> None:
    """mqadmin statsAll asks for the group that reads them, as for any other."""
    async with scene(tmp_path) as s:
        producer = await s.producer()
        for _ in range(2):
            await producer.prepare()
        await s.round()
        await s.clock.advance(10)
        found = s.broker.figures.stats.named("GROUP_GET_NUMS", f"{reserved.HALF_TOPIC}@CID_RMQ_SYS_TRANS")
        assert found is not None
        assert found.stats_minute.sum >= 2
        assert s.broker.figures.stats.totals == (0, 0)


async def test_metrics_have_the_names_of_rocketmq(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        producer = await s.producer()
        halves = [await producer.prepare() for _ in range(4)]
        s.clock.step_wall(30_000)
        await producer.end(halves[0])
        await producer.end(halves[1], ROLLBACK)
        page = (await s.broker.figures.metrics.metrics()).text
        lines = {line.split("{")[0]: line for line in page.splitlines() if TOPIC in line}
        assert lines["rocketmq_half_messages"].endswith(" 2")
        assert lines["rocketmq_commit_messages_total"].endswith(" 1")
        assert lines["rocketmq_rollback_messages_total"].endswith(" 1")
        assert lines["rocketmq_finish_message_latency_milliseconds_count"].endswith(" 1")
        assert lines["rocketmq_finish_message_latency_milliseconds_sum"].endswith(" 30")
        assert 'le="5.0"} 0' in page
        assert 'le="60.0"} 1' in page


async def test_notes_that_find_no_room_wait_and_are_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    async with scene(tmp_path, files=files, commit_log_file_bytes=1 << 16) as s:
        producer = await s.producer()
        segments, log = s.broker.store.segments, s.broker.store.log
        half = await producer.prepare()
        await until(lambda: segments.next_ready)
        files.fail(errno.EIO, Operation.CREATE, path_contains="/commitlog/")
        segments.discard_next()
        before = log.max_offset
        await producer.send("T", b"x" * 100)
        overhead = log.max_offset - before - 100
        assert (await producer.send("T", b"x" * (segments.room - overhead - 100))).code == 0
        assert segments.room == 100  # not enough for a note
        assert (await producer.end(half, ROLLBACK)).code == 0
        await s.broker.write_path.intake.written()  # whatever else the log is to take
        for _ in range(500):
            await asyncio.sleep(0)
        assert caplog.text.count("transactions_not_noted") == 1
        for _ in range(5):
            await s.clock.advance(1.1)
        assert caplog.text.count("transactions_not_noted") == 1
        assert Obstacle.NO_NEXT_FILE in s.broker.store.state.obstacles
        files.mend()
        for _ in range(5):
            await s.clock.advance(1.1)
            await asyncio.sleep(0.01)
        await until(lambda: s.broker.store.state.writable)
        await s.clock.advance(1.1)
        assert len(await producer.ops()) == 1
