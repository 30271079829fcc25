"""Sends one follower the leader's log, for as long as this member leads in one term."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kerolox.clock import Clock
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol.bodies.dledger import (
    LedgerCode,
    LedgerStatus,
    PushAnswer,
    PushRequest,
    PushType,
    encode_push,
)
from kerolox.protocol.ledger_entry import NO_INDEX, LedgerEntry
from kerolox.replication.dledger.bell import Bell
from kerolox.replication.dledger.dispatch import (
    DispatchFailed,
    Quota,
    Stage,
    Step,
    Window,
    after_compare,
    batches,
    first_step,
)
from kerolox.replication.dledger.ledger import Ledger
from kerolox.replication.dledger.network import Line, Network
from kerolox.replication.dledger.settings import GroupSettings

log = logging.getLogger(__name__)

READ_ENTRIES_MAX = 256
READ_BYTES_MAX = 1 << 20
FAILED_PAUSE_S = 0.5
COMMIT_S = 0.1  # so long after the last push followers hear of a commit; Apache's after a second


class Dispatcher:
    """The leader's end of one follower. A new one for every term."""

    def __init__(
        self,
        settings: GroupSettings,
        peer: str,
        term: int,
        ledger: Ledger,
        network: Network,
        clock: Clock,
        on_acked: Callable[[], None],
    ) -> None:
        self.peer = peer
        self.acked = NO_INDEX  # it has the log up to here, as far as is known in this term
        self.stage = Stage.COMPARE
        self._settings = settings
        self._term = term
        self._ledger = ledger
        self._network = network
        self._clock = clock
        self._on_acked = on_acked
        self._bell = Bell(clock)
        self._is_ready = False  # it follows: it answered a heartbeat
        self._window: Window | None = None
        self._failed: str | None = None  # why it has to begin anew
        self._quota = Quota(settings.push_bytes_per_s)
        self._commit_sent = NO_INDEX
        self._commit_s = 0.0  # when it was last answered
        self._failures = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    def ready(self) -> None:
        """It answered a heartbeat of this term. Before, a push would lie there unanswered, and too many of
        them block an Apache member for ever (dledger#282)."""
        if not self._is_ready:
            self._is_ready = True
            self._bell.ring()

    def wake(self) -> None:
        """There is more to send, or more is committed."""
        self._bell.ring()

    @property
    def lag(self) -> int:
        return self._ledger.end_index - self.acked

    def stop(self) -> None:
        """Send nothing more; answers that still arrive are ignored."""
        self._on_acked = lambda: None
        self._window = None
        self._task.cancel()

    async def close(self) -> None:
        self.stop()
        await asyncio.wait([self._task])

    # --- the stages -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                while not self._is_ready:
                    await self._bell.wait(self._settings.call_ms / 1000)
                step = first_step(self._ledger.end_index)
                if step is None:
                    await self._bell.wait(self._settings.push_again_ms / 1000)
                    continue
                self.stage = Stage.COMPARE
                line = await self._network.line(self.peer)
                while step.stage is not Stage.APPEND:
                    self.stage = step.stage
                    step = await self._ask(line, step)
                self.stage = Stage.APPEND
                log.info(
                    "ledger_pushes peer=%r term=%d from=%d behind=%d",
                    self.peer, self._term, step.at, self._ledger.end_index + 1 - step.at,
                )  # fmt: skip
                self._failures = 0
                await self._append(line, step.at)
            except (KeroloxError, ProtocolError, DispatchFailed) as error:
                self._failures += 1
                level = logging.INFO if self._failures & (self._failures - 1) == 0 else logging.DEBUG
                log.log(
                    level, "ledger_push_failed peer=%r term=%d stage=%s times=%d error=%r",
                    self.peer, self._term, self.stage.value, self._failures, str(error),
                )  # fmt: skip
                self._window = None
                await self._clock.sleep(FAILED_PAUSE_S)
            except Exception:
                log.exception("ledger_push_failed peer=%r next='tried again: please report it'", self.peer)
                self._window = None
                await self._clock.sleep(FAILED_PAUSE_S)

    async def _ask(self, line: Line, step: Step) -> Step:
        """Compare or truncate."""
        ledger = self._ledger
        (entry,) = await ledger.read(step.at, 1, 1)
        kind = PushType.COMPARE if step.stage is Stage.COMPARE else PushType.TRUNCATE
        body = encode_push(self._request(kind), [entry], batch=False)
        done: asyncio.Future[bytes | Exception] = asyncio.get_running_loop().create_future()
        line.ask(
            LedgerCode.PUSH,
            body,
            lambda answer: None if done.done() else done.set_result(answer),
            self._settings.call_ms / 1000,
        )
        answered = await done
        if isinstance(answered, Exception):
            raise answered
        answer = PushAnswer.decode(answered)
        if step.stage is Stage.COMPARE:
            return after_compare(step.at, ledger.begin_index, ledger.end_index, answer)
        if answer.code != LedgerStatus.SUCCESS:
            raise DispatchFailed(f"asked it to end at entry {step.at}, and was answered {answer.code}")
        return Step(Stage.APPEND, step.at + 1)

    async def _append(self, line: Line, first: int) -> None:
        """Send what there is, and what comes, until something does not fit."""
        settings, ledger, clock = self._settings, self._ledger, self._clock
        window = self._window = Window(first, settings.push_window)
        self._failed = None
        self._note_acked(window)
        while self._failed is None and line.is_open:
            wait_s = settings.push_again_ms / 1000
            now_s = clock.monotonic_s()
            overdue = window.overdue(now_s, wait_s)
            if overdue is not None:
                again = await self._read(*overdue)
                self._send(line, window, again, many=len(again) > 1)
            elif window.next_index <= ledger.end_index and window.room > 0:
                entries = await ledger.read(
                    window.next_index, min(READ_ENTRIES_MAX, window.room), READ_BYTES_MAX
                )
                pause_s = self._throttled(entries, now_s)
                if pause_s > 0:
                    await clock.sleep(pause_s)
                    continue
                for entries_of_one in batches(entries, many=settings.batch_push):
                    self._send(line, window, entries_of_one, many=settings.batch_push)
                await asyncio.sleep(0)  # others are served, too
            elif (due_s := self._commit_due_s(now_s)) <= 0:
                self._tell_commit(line, now_s)
            else:
                await self._bell.wait(min(wait_s, due_s))
        raise DispatchFailed(self._failed or "the connection was lost")

    async def _read(self, first: int, last: int) -> list[LedgerEntry]:
        found: list[LedgerEntry] = []
        while first <= last:
            found += await self._ledger.read(first, last + 1 - first, READ_BYTES_MAX)
            first = found[-1].index + 1
        return found

    def _throttled(self, entries: list[LedgerEntry], now_s: float) -> float:
        settings = self._settings
        lag = self._ledger.end_index - self.acked
        if lag <= settings.push_window:
            return 0.0
        size = sum(entry.size for entry in entries)
        if lag * (size // len(entries)) <= settings.throttle_bytes:
            return 0.0
        return self._quota.take(size, now_s)

    # --- requests and answers -------------------------------------------------------------------

    def _request(self, kind: PushType) -> PushRequest:
        own = self._settings.self_id
        return PushRequest(
            commit_index=self._ledger.committed_index,
            group=self._settings.group,
            leader_id=own,
            local_id=own,
            remote_id=self.peer,
            term=self._term,
            type=kind,
        )

    def _send(self, line: Line, window: Window, entries: list[LedgerEntry], *, many: bool) -> None:
        request = self._request(PushType.APPEND)
        body = encode_push(request, entries, batch=many)
        line.ask(
            LedgerCode.PUSH,
            body,
            lambda answer: self._answered(window, answer),
            self._settings.call_ms / 1000,
        )
        now_s = self._clock.monotonic_s()
        window.sent(entries, now_s)
        self._commit_sent, self._commit_s = request.commit_index, now_s

    def _answered(self, window: Window, answered: bytes | Exception) -> None:
        if window is not self._window:
            return
        try:
            if isinstance(answered, Exception):
                raise answered
            answer = PushAnswer.decode(answered)
            if answer.code == LedgerStatus.INCONSISTENT_STATE:
                self._failed = f"entry {answer.index} does not fit: its log ends at {answer.end_index}"
            elif answer.code == LedgerStatus.SUCCESS and isinstance(answer.index, int):
                if answer.term == self._term and window.answered(answer.index, answer.count):
                    self._note_acked(window)
            else:
                log.debug("push_answered peer=%r code=%d index=%r", self.peer, answer.code, answer.index)
                return  # sent again when its time is over
        except (KeroloxError, ProtocolError, DispatchFailed) as error:
            self._failed = str(error)
        self._bell.ring()

    def _note_acked(self, window: Window) -> None:
        """Less than before, too: a follower whose disk was lost has less."""
        grew, self.acked = window.acked > self.acked, window.acked
        if grew:
            self._on_acked()

    def _commit_due_s(self, now_s: float) -> float:
        """In what time the follower has to be told how far things are committed."""
        news = self._ledger.committed_index > self._commit_sent
        every_s = COMMIT_S if news else self._settings.push_again_ms / 1000
        return self._commit_s + every_s - now_s

    def _tell_commit(self, line: Line, now_s: float) -> None:
        request = self._request(PushType.COMMIT)
        line.ask(
            LedgerCode.PUSH,
            encode_push(request, [], batch=False),
            lambda answered: None,
            self._settings.call_ms / 1000,
        )
        self._commit_sent, self._commit_s = request.commit_index, now_s
