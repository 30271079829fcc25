"""Administration of stored messages: finding them, and resending dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from kerolox.client.admin.dead_letters import DeadLetters, Resend, Selection
from kerolox.client.admin.lookups import Lookups
from kerolox.client.admin.part import AdminPart, When, span_ms
from kerolox.client.admin.results import DeadLetterGroup, FoundMessages, ResendResult
from kerolox.client.errors import NotFound, OffsetGone, ResendStopped
from kerolox.client.messages import Queue, Received, inflate, received
from kerolox.errors import KeroloxError, OptionError
from kerolox.protocol.limits import INFLATED_BLOCK_BYTES_MAX
from kerolox.protocol.message import StoredMessage


class MessageAdmin(AdminPart):
    """Finds messages, by id, key, time and offset, and resends dead letters."""

    # --- messages -------------------------------------------------------------------------------------

    async def find_message(self, id: str, topic: str | None = None) -> Received:
        """Return the message with an offset id, or with the id its producer gave it. With ``topic`` also one
        with a key that no other message of the topic has. Raises NotFound."""
        found = received(await Lookups(self._calls).by_id(id, topic))
        inflate(found)
        return found

    async def find_messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        start: When = None,
        end: When = None,
        limit: int = 100,
    ) -> FoundMessages:
        """Return messages of a topic: with a key, stored between two times, or both. Raises NotFound."""
        _check_limit(limit)
        begin_ms, end_ms = span_ms(start, end)
        lookups = Lookups(self._calls)
        if key is None:
            found = await lookups.by_time(topic, begin_ms, end_ms, limit)
        else:
            found = await lookups.by_key(topic, key, begin_ms=begin_ms, end_ms=end_ms)
        if not found.messages:
            wanted = _wanted(key=key, start=start, end=end)
            raise NotFound(
                f"topic {topic} has no {f'message that matches {wanted}' if wanted else 'message'}"
            )
        cut = f"the first {limit} of {len(found.messages)}" if len(found.messages) > limit else found.cut
        return _found(found.messages[:limit], cut)

    async def read_message(self, queue: Queue, offset: int) -> Received:
        """Return the message at an offset of a queue. Raises OffsetGone, or NotFound for an unknown queue."""
        for known in await self._calls.queues(queue.topic):
            if (known.broker, known.queue_id) == (queue.broker, queue.queue_id):
                break
        else:
            raise NotFound(f"topic {queue.topic} has no queue {queue.queue_id} at broker {queue.broker}")
        messages, following, end = await Lookups(self._calls).pull(queue.topic, known, offset, count_max=1)
        if not messages or messages[0].queue_offset != offset:
            first = following if following > offset else min(offset, end)
            raise OffsetGone(queue, offset, first, end)
        found = received(messages[0])
        inflate(found)
        return found

    # --- dead letters ---------------------------------------------------------------------------------

    async def list_dead_letters(self) -> list[DeadLetterGroup]:
        """Return the groups that have dead letters, with their number and age."""
        return [
            DeadLetterGroup(
                group=topic.group,
                messages=topic.messages,
                oldest_ms=topic.oldest_ms,
                newest_ms=topic.newest_ms,
                brokers=tuple(topic.brokers),
            )
            for topic in await DeadLetters(self._calls).topics()
        ]

    async def find_dead_letters(
        self,
        group: str,
        *,
        ids: Sequence[str] = (),
        key: str | None = None,
        start: When = None,
        end: When = None,
        limit: int = 100,
    ) -> FoundMessages:
        """Return the dead letters of a group, the oldest of each queue first. Raises NotFound when there
        is no such group, or none fits the conditions."""
        _check_limit(limit)
        chosen = _selection(group, ids, key, start, end)
        found: list[StoredMessage] = []
        async for page in chosen.pages(self._calls):
            found += page[: limit - len(found)]
            if len(found) >= limit:
                break
        return _found(
            found, f"the first {len(found)} of {chosen.total}" if len(found) < chosen.total else chosen.cut
        )

    async def resend_dead_letters(
        self,
        group: str,
        *,
        ids: Sequence[str] = (),
        key: str | None = None,
        start: When = None,
        end: When = None,
        to_topic: str | None = None,
        to_retry: bool = False,
        rate: float = 100.0,
        again: bool = False,
        preview: bool = False,
    ) -> ResendResult:
        """Resend dead letters of a group, all without conditions, to the topic each came from.

        ``to_retry``: to the retry topic of the group, so that no other group receives them. ``rate``: at most
        so many a second; 0: no limit. A dead letter that an earlier run resent is passed over, unless
        ``again``. ``preview`` sends nothing. Raises ResendStopped, with the numbers, when a message cannot be
        sent; the next run continues there.
        """
        if to_retry and to_topic is not None:
            raise OptionError("to_topic", to_topic, "either to_topic or to_retry")
        chosen = _selection(group, ids, key, start, end)
        run = Resend(
            self._calls,
            chosen.group,
            to_retry=to_retry,
            to_topic=to_topic,
            rate=rate,
            again=again,
            dry_run=preview,
        )
        try:
            async for page in chosen.pages(self._calls):
                await run.page(page)
        except KeroloxError as error:
            if not chosen.total:
                raise
            raise ResendStopped(chosen.group, chosen.total, run.resent, run.passed_over, error) from error
        return ResendResult(total=chosen.total, resent=run.resent, passed_over=run.passed_over)


def _selection(group: str, ids: Sequence[str], key: str | None, start: When, end: When) -> Selection:
    if isinstance(ids, str):
        raise OptionError("ids", ids, f"a list of ids: [{ids!r}]")
    if ids and (key, start, end) != (None, None, None):
        raise OptionError("ids", list(ids), "either ids, or a key and times")
    begin_ms, end_ms = span_ms(start, end)
    wanted = _wanted(ids=list(ids) or None, key=key, start=start, end=end)
    return Selection(group, ids=ids, key=key, begin_ms=begin_ms, end_ms=end_ms, wanted=wanted)


def _found(messages: Sequence[StoredMessage], cut: str) -> FoundMessages:
    """Return messages with inflated bodies. The bodies fit into INFLATED_BLOCK_BYTES_MAX, except one that
    exceeds it by itself."""
    found: list[Received] = []
    left = INFLATED_BLOCK_BYTES_MAX
    for stored in messages:
        message = received(stored)
        inflate(message)
        left -= len(message.body)
        if left < 0 and found:
            return FoundMessages(
                messages=tuple(found),
                cut=f"the first {len(found)} of {len(messages)}, whose bodies have "
                f"{INFLATED_BLOCK_BYTES_MAX >> 20} MiB",
            )
        found.append(message)
    return FoundMessages(messages=tuple(found), cut=cut)


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise OptionError("limit", limit, "a number of messages from 1")


def _wanted(**conditions: object) -> str:
    return ", ".join(f"{name}={value}" for name, value in conditions.items() if value is not None)
