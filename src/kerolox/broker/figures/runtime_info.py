"""Runtime information of a broker, under the names that tools expect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kerolox.broker.base import Base
from kerolox.broker.figures.stats import Statistics
from kerolox.protocol.codes import VERSION, version_name
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.errors import StoreError
from kerolox.store.tables.offsets import DelayOffsets

# Apache's thread pools under their names in the figures, and the lanes that do their work. No lane
# acknowledges popped messages.
_POOLS = {"send": "send", "pull": "pull", "query": "query_message", "litePull": "pull", "ack": "ack"}
_UNITS = "KMGTPE"


class RuntimeInfo:
    """Content of the answer to GET_BROKER_RUNTIME_INFO. ``delays`` is the progress of delayed messages,
    ``more`` are figures of other parts."""

    def __init__(
        self,
        base: Base,
        stats: Statistics,
        delays: DelayOffsets,
        more: Iterable[Callable[[], Mapping[str, object]]],
    ) -> None:
        self._store = base.store
        self._stats = stats
        self._delays = delays
        self._lanes = base.lanes
        self._options = base.options
        self._clock = base.clock
        self._more = tuple(more)

    def collect(self) -> dict[str, str]:
        """Return the figures that are in memory. Call it on the event loop."""
        store, stats = self._store, self._stats
        puts = stats.all_puts
        puts_now, gets_now = stats.totals
        progress = store.progress
        found, missed = stats.rates.over(1), stats.rates.over(2)
        transferred = _numbers(stats.rates.over(3))
        info: dict[str, object] = {
            "brokerActive": store.state.writable,
            "brokerVersion": VERSION,
            "brokerVersionDesc": version_name(VERSION),
            "bootTimestamp": stats.started_ms,
            "runtime": _duration(self._clock.wall_ms() - stats.started_ms),
            "startAcceptSendRequestTimeStamp": self._options.accept_sends_from_ms,
            "putMessageTimesTotal": puts.messages,
            "putMessageSizeTotal": puts.size_bytes,
            "putMessageFailedTimes": 0,
            "putMessageAverageSize": puts.size_bytes / puts.messages if puts.messages else 0.0,
            "putMessageEntireTimeMax": int(stats.put_ms_max),
            "putMessageDistributeTime": stats.put_distribution(),
            "putLatency99": f"{stats.put_ms_of(0.99):.2f}",
            "putLatency999": f"{stats.put_ms_of(0.999):.2f}",
            "getMessageEntireTimeMax": int(stats.get_ms_max),
            "putTps": _numbers(stats.rates.over(0)),
            "getFoundTps": _numbers(found),
            "getMissTps": _numbers(missed),
            "getTotalTps": _numbers(a + b for a, b in zip(found, missed, strict=True)),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # RocketMQ 4's spelling; its clusterList fails without it
            "msgPutTotalYesterdayMorning": stats.yesterday_morning[0],
            "msgPutTotalTodayMorning": stats.today_morning[0],
            "msgPutTotalTodayNow": puts_now,
            "msgGetTotalYesterdayMorning": stats.yesterday_morning[1],
            "msgGetTotalTodayMorning": stats.today_morning[1],
            "msgGetTotalTodayNow": gets_now,
            "commitLogMinOffset": store.log.min_offset,
            "commitLogMaxOffset": store.log.max_offset,
            "dispatchMaxBuffer": 0,
            "dispatchBehindBytes": max(0, store.log.max_offset - store.dispatcher.dispatched),
            "remainHowManyDataToFlush": _size(max(0, progress.appended - progress.flushed)),
            "remainTransientStoreBufferNumbs": 2**31 - 1,  # there is no pool that could be exhausted
            "pageCacheLockTimeMills": 0,
            "timerReadBehind": 0,
            "timerOffsetBehind": 0,
            "timerCongestNum": 0,
            "timerEnqueueTps": 0.0,
            "timerDequeueTps": 0.0,
        }
        for pool, lane in _POOLS.items():
            found_lane = self._lanes.get(lane)
            waiting, capacity, head_s = (
                (0, 0, 0.0)
                if found_lane is None
                else (found_lane.waiting, found_lane.waiting_max, found_lane.head_wait_s())
            )
            info[f"{pool}ThreadPoolQueueSize"] = waiting
            info[f"{pool}ThreadPoolQueueCapacity"] = capacity
            info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = int(head_s * 1000)
        transaction = self._lanes.get("transaction")
        info["EndTransactionQueueSize"] = 0 if transaction is None else transaction.waiting
        info["EndTransactionThreadPoolQueueCapacity"] = 0 if transaction is None else transaction.waiting_max
        for level, offset in self._delays.offsets.items():
            end = store.queues.max_offset(SCHEDULE_TOPIC, level - 1)
            info[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        for tell in self._more:
            info |= tell()
        return {key: _text(value) for key, value in info.items()}

    def collect_from_disk(self) -> dict[str, str]:
        """Return the figures from the file system and the log. Call it in a thread."""
        store = self._store
        info: dict[str, object] = {}
        try:
            info["earliestMessageTimeStamp"] = store.log.earliest_ms
        except StoreError:
            pass  # the log cannot be read now
        ratios: list[float] = []
        for directory in store.segments.directories:
            ratio = self._used(directory)
            info[f"commitLogDiskRatio_{directory}"] = ratio
            ratios.append(ratio)
        info["commitLogDiskRatio"] = min(ratios)
        info["consumeQueueDiskRatio"] = self._used(store.root)
        try:
            usage = store.files.disk_usage(store.root)
            info["commitLogDirCapacity"] = f"Total : {_size(usage.total)}, Free : {_size(usage.free)}."
        except StoreError:
            pass
        return {key: _text(value) for key, value in info.items()}

    def _used(self, directory: str) -> float:
        try:
            return self._store.files.used_ratio(directory)
        except StoreError:
            return -1.0


def _numbers(rates: Iterable[float]) -> str:
    return " ".join(map(str, rates))


def _size(count: int) -> str:
    """Format a size, ``1536`` as ``1.5 KiB``, as RocketMQ does."""
    if count < 1024:
        return f"{count} B"
    exponent = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**exponent:.1f} {_UNITS[exponent - 1]}iB"


def _duration(elapsed_ms: int) -> str:
    seconds = max(0, elapsed_ms) // 1000
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
