"""Pulls by queue and offset, held until messages arrive.

A pull is answered inside the read pass if the messages are in memory, by a thread if they are not, and on
arrival of the next message if none is available.
"""

from __future__ import annotations

import asyncio

from kerolox.access.needs.kinds import on
from kerolox.access.needs.names import SUB
from kerolox.broker.base import Base
from kerolox.broker.consume.group_reads import GroupRead, GroupReads
from kerolox.broker.consume.message_waits import WAIT_MS_MAX, Wait, WaitPoint
from kerolox.broker.consume.read_filter import ReadRefused
from kerolox.broker.members.compiled_filters import NotCompiled
from kerolox.errors import InvalidRequest
from kerolox.front.handlers import refusal
from kerolox.front.refusals import Refusal
from kerolox.front.requests import Answer, HeldRequest, Later, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.store.errors import Cold
from kerolox.store.queue.reading import PULL_BYTES_MAX, QueueRead, ReadStatus

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY_QUEUE = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE)
# The offset is inside the queue. So is the next offset, whatever the result.
_INSIDE = (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING)


class Pulls:
    """Handlers of PULL_MESSAGE and LITE_PULL_MESSAGE."""

    def __init__(self, base: Base, reads: GroupReads) -> None:
        self._reads = reads
        self._leadership = base.leadership
        self._options = base.options
        self._clock = base.clock
        self._cold: set[asyncio.Task[None]] = set()

    @serves(
        RequestCode.PULL_MESSAGE, PullRequest, on(SUB, topic="topic", group="consumer_group"), lane="pull"
    )
    @serves(
        RequestCode.LITE_PULL_MESSAGE,
        PullRequest,
        on(SUB, topic="topic", group="consumer_group"),
        lane="pull",
    )
    def pull(self, request: Request[PullRequest]) -> Answer | Later | None:
        """Return messages of a queue from an offset; hold the request while there are none."""
        try:
            read = self._check(request)
        except ReadRefused as refused:
            return _refusal(refused)
        except NotCompiled as error:
            unknown = error
            return lambda: self._pull_prepared(request, unknown)
        return self._checked(request, read)

    async def _pull_prepared(self, request: Request[PullRequest], unknown: NotCompiled) -> Answer | None:
        await self._reads.prepare(unknown)
        try:
            read = self._check(request)
        except ReadRefused as refused:
            return _refusal(refused)
        return self._checked(request, read)

    def _checked(self, request: Request[PullRequest], read: GroupRead) -> Answer | None:
        header = request.header
        if header.sys_flag & PULL_COMMIT_OFFSET and self._leadership.serves:
            self._reads.commit(header.topic, header.consumer_group, header.queue_id, header.commit_offset)
        return self._read(request, read, may_hold=True)

    async def close(self) -> None:
        for task in list(self._cold):
            task.cancel()
        if self._cold:
            await asyncio.gather(*self._cold, return_exceptions=True)

    def _check(self, request: Request[PullRequest]) -> GroupRead:
        """Return the read of a pull. Errors are checked in RocketMQ's order."""
        header, reads = request.header, self._reads
        reads.check_broker()
        if request.code == RequestCode.LITE_PULL_MESSAGE and not self._options.lite_pull:
            raise ReadRefused(ResponseCode.NO_PERMISSION, "the broker does not serve lite pulls", 1)
        group = reads.group(header.consumer_group)
        topic = reads.topic(header.topic)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidRequest(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{request.caller.address}]"
            )
        if header.sys_flag & PULL_SUBSCRIPTION:
            filter = reads.filter_in_request(header.topic, header.subscription, header.expression_type)
        else:
            filter = reads.filter_of(group, header.topic, header.sub_version)
        return GroupRead(topic, group, filter)

    # --- reading ---------------------------------------------------------------------------------------

    def _read(self, request: Request[PullRequest], read: GroupRead, *, may_hold: bool) -> Answer | None:
        header = request.header
        reset = self._reads.take_reset(header.topic, header.consumer_group, header.queue_id)
        if reset is not None:
            return self._elsewhere(header, read, reset, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        try:
            found = self._reads.read(
                read,
                header.queue_id,
                header.queue_offset,
                header.max_msg_nums,
                header.max_msg_bytes or PULL_BYTES_MAX,
                header.scan_bytes,
            )
        except Cold:
            task = asyncio.get_running_loop().create_task(self._read_in_thread(request, read, may_hold))
            self._cold.add(task)
            task.add_done_callback(self._cold.discard)
            return None
        return self._answer(request, read, found, may_hold)

    async def _read_in_thread(self, request: Request[PullRequest], read: GroupRead, may_hold: bool) -> None:
        header = request.header
        try:
            found = await self._reads.read_in_thread(
                read,
                header.queue_id,
                header.queue_offset,
                header.max_msg_nums,
                header.max_msg_bytes or PULL_BYTES_MAX,
                header.scan_bytes,
            )
            answer = self._answer(request, read, found, may_hold)
        except Exception as error:
            answer = refusal(error, request)
        if answer is not None:
            request.answer(answer)

    def _answer(
        self, request: Request[PullRequest], read: GroupRead, found: QueueRead, may_hold: bool
    ) -> Answer | None:
        header = request.header
        status = found.status
        self._reads.note(read, header.queue_id, found)
        if status in _EMPTY_QUEUE:
            code = ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND
        else:
            code = _CODES[status]
        next_offset, holds = found.next_offset, code == ResponseCode.PULL_NOT_FOUND
        if not self._leadership.leads and status not in _INSIDE:
            code, next_offset, holds = self._outside_of_copy(code, header.queue_offset, found)
        if holds and may_hold and header.sys_flag & PULL_SUSPEND:
            self._hold(request, read)
            return None
        return Answer(
            code=code,
            header=PullAnswer(
                suggest_which_broker_id=self._suggest(read.group, found.slow),
                next_begin_offset=next_offset,
                min_offset=found.min_offset,
                max_offset=found.max_offset,
                topic_sys_flag=read.topic.topic_sys_flag,
                group_sys_flag=read.group.group_sys_flag,
            ),
            body=found.parts if status is ReadStatus.FOUND else b"",
            remark=status.value,
        )

    def _outside_of_copy(
        self, code: ResponseCode, offset: int, found: QueueRead
    ) -> tuple[ResponseCode, int, bool]:
        """Return a follower's answer for an offset outside of its queue: the code, the next offset, and
        whether to hold the pull.

        The queue may be shorter than the leader's, at either end. So the consumer keeps its offset and asks
        the leader; while there is no leader, the pull is held here. RocketMQ's followers reject it even then,
        and the consumer repeats it at once, again and again.
        """
        alone = self._leadership.leader is None
        if code == ResponseCode.PULL_OFFSET_MOVED and self._options.correct_while_following:
            return code, found.next_offset, False
        if code == ResponseCode.PULL_NOT_FOUND and alone:
            return code, offset, True
        return ResponseCode.PULL_RETRY_IMMEDIATELY, offset, alone

    def _hold(self, request: Request[PullRequest], read: GroupRead) -> None:
        if request.caller.is_closed:  # closed while a thread was reading: the client no longer waits
            return
        header = request.header
        wait_ms = (
            header.suspend_timeout_millis if self._options.long_polling else self._options.short_polling_ms
        )

        def resume() -> None:
            if request.caller.is_closed:
                return
            try:
                answer = self._continue(request, read)
            except Exception as error:
                answer = refusal(error, request)
            if answer is not None:
                HeldRequest.of(request).answer(answer)

        wait = Wait(
            (WaitPoint(header.topic, header.queue_id, header.queue_offset),),
            self._clock.monotonic_s() + min(max(0, wait_ms), WAIT_MS_MAX) / 1000,
            resume,
            read.filter.by_properties,
            request.caller,
        )
        if not self._reads.wait(wait):
            resume()

    def _continue(self, request: Request[PullRequest], read: GroupRead) -> Answer | None:
        """Read again for a held pull. Its group and topic may have changed or been reset meanwhile."""
        if not self._reads.is_current(read):
            try:
                read = self._check(request)
            except ReadRefused as refused:
                return _refusal(refused)
            except NotCompiled:
                offset = request.header.queue_offset
                return self._elsewhere(
                    request.header, read, offset, ResponseCode.PULL_RETRY_IMMEDIATELY, "FILTER_NOT_READY"
                )
        return self._read(request, read, may_hold=False)

    def _suggest(self, group: GroupConfig, slow: bool) -> int:
        if not self._options.slave_read:
            return 0
        return group.which_broker_when_consume_slowly if slow else group.broker_id

    def _elsewhere(self, header: PullRequest, read: GroupRead, offset: int, code: int, remark: str) -> Answer:
        """Return an answer without messages that names the next offset."""
        min_offset, max_offset = self._reads.bounds(header.topic, header.queue_id)
        return Answer(
            code=code,
            header=PullAnswer(
                suggest_which_broker_id=0,
                next_begin_offset=offset,
                min_offset=min_offset,
                max_offset=max_offset,
                topic_sys_flag=read.topic.topic_sys_flag,
                group_sys_flag=read.group.group_sys_flag,
            ),
            remark=remark,
        )


def _refusal(refused: ReadRefused) -> Answer:
    answer = Refusal.of(refused).answer()
    if refused.forbidden_type is not None:
        answer.header = PullAnswer(
            suggest_which_broker_id=0,
            next_begin_offset=0,
            min_offset=0,
            max_offset=0,
            forbidden_type=refused.forbidden_type,
        )
    return answer
