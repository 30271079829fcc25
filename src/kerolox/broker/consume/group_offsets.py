"""Progress of groups, bounds of queues, and resets of groups backward or forward."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from kerolox.access.needs.administration import CLONE, CORRECTION
from kerolox.access.needs.kinds import on
from kerolox.access.needs.names import GET, SUB_OR_GET, SUB_OR_UPDATE, UPDATE
from kerolox.broker.base import Base
from kerolox.broker.bounds import OFFSETS_MAX, too_many
from kerolox.broker.consume.message_waits import MessageWaits
from kerolox.broker.members.groups import Groups, check_group
from kerolox.broker.members.members import Member, Members
from kerolox.broker.tables.topics import Topics
from kerolox.errors import InvalidRequest, KeroloxError, Refused
from kerolox.front.handlers import refusal
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.offsets import ConsumerStatus, CorrectionOffsets, ResetOffsets
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import (
    VERSION_RESET_OFFSET,
    Language,
    RequestCode,
    ResponseCode,
    version_name,
)
from kerolox.protocol.headers import offset as headers
from kerolox.protocol.limits import INT64_MAX
from kerolox.store.errors import Cold
from kerolox.store.queue.queues import Queue
from kerolox.store.tables.offsets import ConsumerOffsets
from kerolox.unsaved import Save, Unsaved

log = logging.getLogger(__name__)

ASK_CLIENT_S = 5.0


class GroupOffsets:
    """Requests that read and commit offsets of groups, and that ask for the bounds and times of queues."""

    def __init__(self, base: Base, topics: Topics, groups: Groups, offsets: ConsumerOffsets) -> None:
        self._store = base.store
        self._leadership = base.leadership
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._cold: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in list(self._cold):
            task.cancel()
        if self._cold:
            await asyncio.gather(*self._cold, return_exceptions=True)

    # --- a group's progress ------------------------------------------------------------------------------

    @serves(
        RequestCode.QUERY_CONSUMER_OFFSET,
        headers.QueryOffsetRequest,
        on(SUB_OR_GET, topic="topic", group="consumer_group"),
        lane="consumer_manager",
    )
    def query(self, request: Request[headers.QueryOffsetRequest]) -> Answer | None:
        """Answer with the stored progress of a group in a queue. Without progress, the answer is 0 for a
        queue whose beginning is still in memory: a new group of a young queue gets all its messages."""
        asked = request.header
        offset = self._offsets.offset(asked.topic, asked.consumer_group, asked.queue_id)
        if offset >= 0:
            return _offset(offset)
        if asked.set_zero_if_not_found is False:
            return _no_offset("Not found, do not set to zero, maybe this group boot first")
        queue = self._store.queues.find(asked.topic, asked.queue_id)
        if queue is None or queue.min_offset > 0 or queue.max_offset == 0:
            return _first_or_none(False)
        try:
            return _first_or_none(self._store.queues.is_in_memory(queue, 0))
        except Cold:
            pass
        task = asyncio.get_running_loop().create_task(self._query_cold(request, queue))
        self._cold.add(task)
        task.add_done_callback(self._cold.discard)
        return None

    async def _query_cold(self, request: Request[headers.QueryOffsetRequest], queue: Queue) -> None:
        queues = self._store.queues
        try:
            in_memory = await self._store.readers.read(
                lambda: queues.is_in_memory(queue, 0, may_wait=True), limited=True
            )
            request.answer(_first_or_none(in_memory))
        except Exception as error:
            request.answer(refusal(error, request))

    @serves(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        headers.UpdateOffsetRequest,
        on(SUB_OR_UPDATE, topic="topic", group="consumer_group"),
        lane="consumer_manager",
    )
    def update(self, request: Request[headers.UpdateOffsetRequest]) -> Answer:
        """Store the progress of a group in a queue."""
        header = request.header
        topic, group = header.topic, header.consumer_group
        self._groups.known(group, f"Group {group} not exist!")
        config = self._topics.known(topic, f"Topic {topic} not exist!")
        if self._offsets.has_reset(topic, group, header.queue_id):
            # The member does not know yet that the group was reset.
            return Answer(remark="Offset has been previously reset")
        end = max(0, self._store.queues.max_offset(topic, header.queue_id))
        if not self._leadership.leads:
            end = INT64_MAX  # the copy may be shorter than what the group has consumed
        why_not = _why_no_progress(config, header.queue_id, header.commit_offset, end)
        if why_not is not None:
            raise InvalidRequest(f"offset rejected, group {group}: {why_not}")
        if not self._offsets.has_room(topic, group, header.queue_id, OFFSETS_MAX):
            raise too_many("offsets of groups", "OFFSETS_MAX", OFFSETS_MAX)
        self._offsets.commit(topic, group, header.queue_id, header.commit_offset)
        if not self._leadership.leads:
            self._offsets.keep(topic, group, header.queue_id)
        return Answer()

    # --- the bounds of a queue ---------------------------------------------------------------------------

    @serves(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        headers.SearchOffsetRequest,
        on(SUB_OR_GET, topic="topic"),
        lane="consumer_manager",
    )
    async def search(self, request: Request[headers.SearchOffsetRequest]) -> Answer:
        """Return the offset of a queue at a time."""
        asked = request.header
        upper = asked.boundary_type is headers.BoundaryType.UPPER
        return _offset(
            await self._store.queues.offset_by_time(asked.topic, asked.queue_id, asked.timestamp, upper=upper)
        )

    @serves(
        RequestCode.GET_MAX_OFFSET,
        headers.MaxOffsetRequest,
        on(SUB_OR_GET, topic="topic"),
        lane="consumer_manager",
    )
    def max_offset(self, request: Request[headers.MaxOffsetRequest]) -> Answer:
        """Return the end of a queue."""
        return _offset(self._store.queues.max_offset(request.header.topic, request.header.queue_id))

    @serves(
        RequestCode.GET_MIN_OFFSET,
        headers.MinOffsetRequest,
        on(SUB_OR_GET, topic="topic"),
        lane="consumer_manager",
    )
    def min_offset(self, request: Request[headers.MinOffsetRequest]) -> Answer:
        """Return the first offset of a queue."""
        return _offset(self._store.queues.min_offset(request.header.topic, request.header.queue_id))

    @serves(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        headers.EarliestStoreTimeRequest,
        on(SUB_OR_GET, topic="topic"),
        lane="consumer_manager",
    )
    async def earliest_time(self, request: Request[headers.EarliestStoreTimeRequest]) -> Answer:
        """Return the time of the first message of a queue."""
        time_ms = await self._store.queues.earliest_time(request.header.topic, request.header.queue_id)
        return Answer(header=headers.EarliestStoreTimeAnswer(timestamp=time_ms))


class Resets:
    """Requests by which administrators reset, clone and compare the progress of groups.

    Offsets set here are saved before the answer, or undone. Offsets that consumers commit are saved at
    intervals.
    """

    def __init__(
        self,
        base: Base,
        topics: Topics,
        groups: Groups,
        members: Members,
        offsets: ConsumerOffsets,
        waits: MessageWaits,
        save: Save | None,
    ) -> None:
        self._store = base.store
        self._leadership = base.leadership
        self._options = base.options
        self._topics = topics
        self._groups = groups
        self._members = members
        self._offsets = offsets
        self._waits = waits
        # The offsets before, by topic and group; -1: none.
        self.unsaved: Unsaved[tuple[str, str], dict[int, int]] = Unsaved(self._put_back, save)

    # --- reset -------------------------------------------------------------------------------------------

    @serves(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        headers.ResetOffsetRequest,
        on(UPDATE, topic="topic", group="group", administers=True),
    )
    async def reset(self, request: Request[headers.ResetOffsetRequest]) -> Answer:
        """Reset the progress of a group in a topic to a time or an offset."""
        asked = request.header
        if self._options.server_side_reset:
            targets = await self._reset_here(asked)
        else:
            targets = await self._reset_members(asked, request.caller.language is Language.CPP)
        log.info(
            "offsets_reset group=%r topic=%r by=%s here=%s targets=%s",
            asked.group, asked.topic, request.caller.address, self._options.server_side_reset,
            {queue.queue_id: offset for queue, offset in targets.items()},
        )  # fmt: skip
        return Answer(body=ResetOffsets(offset_table=targets).encode())

    async def _reset_here(self, asked: headers.ResetOffsetRequest) -> dict[MessageQueue, int]:
        """Store new offsets. The next pull of each queue is answered with its offset; until then commits have
        no effect."""
        topic, group = asked.topic, asked.group
        if not self._leadership.leads:
            raise Refused(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
        config = self._topics.known(topic, f"Topic {topic} does not exist")
        self._groups.known(group, f"Group {group} does not exist")
        targets: dict[int, int] = {}
        if asked.queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topic {topic} has no queue {asked.queue_id}")
        if asked.queue_id < 0:
            for queue_id in range(config.read_queue_nums):
                targets[queue_id] = await self._offset_at(topic, queue_id, asked.timestamp)
        elif asked.offset is None or asked.offset == -1:
            targets[asked.queue_id] = await self._offset_at(topic, asked.queue_id, asked.timestamp)
        else:
            low = self._store.queues.min_offset(topic, asked.queue_id)
            high = self._store.queues.max_offset(topic, asked.queue_id)
            if not low <= asked.offset <= high + 1:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {asked.offset} not in consume queue range [{low}-{high}]",
                )
            targets[asked.queue_id] = asked.offset
        if not targets:
            raise Refused(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id in targets:
            if not self._offsets.has_room(topic, group, queue_id, OFFSETS_MAX):
                raise too_many("offsets of groups", "OFFSETS_MAX", OFFSETS_MAX)
        before = {queue_id: self._offsets.offset(topic, group, queue_id) for queue_id in targets}
        for queue_id, offset in targets.items():
            self._offsets.reset(topic, group, queue_id, offset)
        self.unsaved.changed((topic, group), before)
        await self.unsaved.saved((topic, group))
        for queue_id in targets:
            self._waits.wake_queue(topic, queue_id)
        return {self._queue(topic, queue_id): offset for queue_id, offset in targets.items()}

    async def _reset_members(self, asked: headers.ResetOffsetRequest, cpp: bool) -> dict[MessageQueue, int]:
        """Send the new offsets to the members, which commit them. Unless forced, offsets only go back."""
        topic, group = asked.topic, asked.group
        config = self._topics.known(
            topic, f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
        )
        targets: dict[MessageQueue, int] = {}
        for queue_id in range(config.write_queue_nums):
            committed = self._offsets.offset(topic, group, queue_id)
            if committed == -1:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"The consumer group <{group}> not exist: no offset in queue {queue_id} of {topic}",
                )
            target = await self._offset_at(topic, queue_id, asked.timestamp)
            targets[self._queue(topic, queue_id)] = target if asked.is_force else min(target, committed)
        found = self._members.online(
            group,
            f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
            f"Timestamp: {asked.timestamp}",
        )
        _check_versions(found.by_caller.values())
        table = ResetOffsets(offset_table=targets)
        body = table.encode_for_cpp() if cpp else table.encode()
        order = headers.ResetOffsetRequest(topic=topic, group=group, timestamp=asked.timestamp)
        for member in list(found.by_caller.values()):
            try:
                member.caller.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, order, body)
            except KeroloxError as error:
                log.warning("reset_not_told group=%r client=%r error=%r", group, member.client_id, error)
        return targets

    async def _offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the offset at this time; a negative time means the end of the queue."""
        if time_ms < 0:
            return self._store.queues.max_offset(topic, queue_id)
        return max(0, await self._store.queues.offset_by_time(topic, queue_id, time_ms))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._options.broker_name, queue_id)

    # --- progress of members and groups ------------------------------------------------------------------

    @serves(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        headers.ConsumerStatusRequest,
        on(GET, topic="topic", group="group"),
    )
    async def status(self, request: Request[headers.ConsumerStatusRequest]) -> Answer:
        """Ask all members, or the named one, for their progress. Members that do not answer are omitted."""
        asked = request.header
        found = self._members.online(
            asked.group,
            f"No Any Consumer online in the consumer group: [{asked.group}]",
            ResponseCode.SYSTEM_ERROR,
        )
        members = list(found.by_caller.values())
        _check_versions(members)
        wanted = (asked.client_addr or "").strip()
        if wanted:
            members = [member for member in members if member.client_id == wanted][:1]
        question = headers.ConsumerStatusRequest(topic=asked.topic, group=asked.group)
        answers = await asyncio.gather(*[self._ask_status(member, question) for member in members])
        table = {client_id: queues for client_id, queues in answers if queues is not None}
        return Answer(body=ConsumerStatus(consumer_table=table).encode())

    async def _ask_status(
        self, member: Member, question: headers.ConsumerStatusRequest
    ) -> tuple[str, dict[MessageQueue, int] | None]:
        client_id = member.client_id
        try:
            answer = await member.caller.call(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question, timeout_s=ASK_CLIENT_S
            )
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return client_id, ConsumerStatus.decode(answer.whole_body).message_queue_table
        except KeroloxError as error:
            log.warning("status_not_told group=%r client=%r error=%r", question.group, client_id, error)
        return client_id, None

    @serves(RequestCode.QUERY_CORRECTION_OFFSET, headers.CorrectionOffsetRequest, CORRECTION)
    def correction(self, request: Request[headers.CorrectionOffsetRequest]) -> Answer:
        """Answer with the progress of the slowest group by queue. The largest number stands for a queue in
        which the compared group is slower still, and which needs no correction."""
        asked = request.header
        left_out = set((asked.filter_groups or "").split(","))
        slowest: dict[int, int] = {}
        for group in self._offsets.groups_of(asked.topic) - left_out:
            for queue_id, offset in self._offsets.queues(asked.topic, group).items():
                if offset >= self._store.queues.min_offset(asked.topic, queue_id):
                    slowest[queue_id] = min(offset, slowest.get(queue_id, offset))
        for queue_id, offset in self._offsets.queues(asked.topic, asked.compare_group).items():
            if slowest.get(queue_id, offset) > offset:
                slowest[queue_id] = INT64_MAX
        return Answer(body=CorrectionOffsets(correction_offsets=slowest).encode())

    @serves(RequestCode.CLONE_GROUP_OFFSET, headers.CloneOffsetRequest, CLONE)
    async def clone(self, request: Request[headers.CloneOffsetRequest]) -> Answer:
        """Copy the progress of one group to another, in one topic or in all topics with progress."""
        asked = request.header
        check_group(asked.dest_group)
        blank = not (asked.topic or "").strip()
        topics = self._offsets.topics_of(asked.src_group) if blank else {asked.topic or ""}
        found = None if asked.offline else self._members.members(asked.src_group)
        cloned: list[tuple[str, str]] = []
        for topic in sorted(topics):
            before = dict.fromkeys(self._offsets.queues(topic, asked.src_group), -1)
            before |= self._offsets.queues(topic, asked.dest_group)
            if self._topics.find(topic) is None:
                reason = "the topic does not exist"
            elif found is not None and found.subscriptions and found.subscription(topic) is None:
                reason = "the group does not subscribe it"
            elif not self._offsets.has_room(topic, asked.dest_group, 0, OFFSETS_MAX):
                reason = f"too many offsets of groups: the limit is {OFFSETS_MAX} (OFFSETS_MAX)"
            elif not self._offsets.clone(topic, asked.src_group, asked.dest_group):
                reason = "the group has no offsets in it"
            else:
                cloned.append((topic, asked.dest_group))
                self.unsaved.changed(cloned[-1], before)
                continue
            log.warning(
                "offsets_not_cloned topic=%r from=%r to=%r reason=%r",
                topic, asked.src_group, asked.dest_group, reason,
            )  # fmt: skip
        if cloned:
            await self.unsaved.saved(*cloned)
        return Answer()

    def _put_back(self, key: tuple[str, str], before: dict[int, int] | None) -> None:
        self._offsets.put_back(*key, before or {})


def _why_no_progress(config: TopicConfig, queue_id: int, offset: int, end: int) -> str | None:
    """Return why a group cannot have this progress: no such queue, or an offset beyond it. None if it can."""
    topic = config.topic_name
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if not 0 <= queue_id < queues:
        return f"topic {topic} has no queue {queue_id}, it has {queues}"
    if not 0 <= offset <= end:
        return f"queue {queue_id} of {topic} ends at {end}, offset {offset} is not in it"
    return None


def _offset(offset: int) -> Answer:
    return Answer(header=headers.OffsetAnswer(offset=offset))


def _no_offset(remark: str) -> Answer:
    return Answer(code=ResponseCode.QUERY_NOT_FOUND, remark=remark)


def _first_or_none(in_memory: bool) -> Answer:
    if in_memory:
        return _offset(0)
    return _no_offset("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")


def _check_versions(members: Iterable[Member]) -> None:
    for member in members:
        if member.client.version < VERSION_RESET_OFFSET:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the client {member.client_id} does not support this feature. "
                f"version={version_name(member.client.version)}",
            )
