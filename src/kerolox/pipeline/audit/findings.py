"""Conversion of task results into findings, with file and offset, meaning and severity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kerolox.pipeline.audit import finding_kinds as kinds
from kerolox.pipeline.audit.finding_kinds import Findings, TableRow
from kerolox.pipeline.audit.plan import StorePlan
from kerolox.pipeline.audit.queues import MISSING, NO_QUEUE, Cover, Lonely, QueueKey, cover
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX
from kerolox.spark.store.files import GONE, NO_FILE, FileRun
from kerolox.store.queue.entry import SIMPLE

# Dead letters are a problem from this count on, or from this share of the topic's messages.
DEAD_LETTERS_HOT = 10
DEAD_LETTERS_SHARE_HOT = 0.01
HALF_OPEN_MS = 60_000  # younger half messages are normal

Where = tuple[int, str, int]  # store, topic, queue


class FindingMaker:
    """Converter of rows into findings."""

    def __init__(self, stores: Sequence[StorePlan], findings: Findings) -> None:
        self._stores = stores
        self._findings = findings
        self._runs: dict[str, FileRun] = {}
        self._damaged: set[tuple[int, int]] = set()  # store and place of damaged queue offsets

    # --- the log ------------------------------------------------------------------------------------

    def log(self, faults: Iterable[TableRow], summary: Iterable[TableRow]) -> None:
        for row in faults:
            store = self._stores[row["store"]]
            if row["kind"] == "damaged log":
                size = row["valid_from"] - row["physical_offset"]
                valid_from = row["valid_from"]
                what = f"{row['what']}; {size} bytes are not a record, valid records follow at {valid_from}"
                if row["what"] == NO_FILE:
                    what = f"{NO_FILE}: {size} bytes from {row['physical_offset']} to {valid_from}"
                elif row["what"] == GONE:
                    what = f"{GONE}; {size} bytes were not read. Run the audit again"
                self._findings.add(
                    kinds.DAMAGED_LOG, **self._in_log(store, row["physical_offset"]), what=what
                )
            else:
                kind = kinds.DAMAGED_FIELDS if row["kind"] == "damaged field" else kinds.BODY_CHECKSUM
                self._findings.add(
                    kind, **self._in_log(store, row["physical_offset"]), topic=row["topic"],
                    queue_id=row["queue_id"], queue_offset=row["queue_offset"], msg_id=row["msg_id"],
                    what=row["what"],
                )  # fmt: skip
        for row in summary:
            store = self._stores[row["store"]]
            if row["stop"] and not row["stop"].startswith("zeros") and not store.unsettled:
                self._findings.add(
                    kinds.OTHER, note=True, **self._in_log(store, row["end"]),
                    what=f"the log ends here in bytes that are not a record: {row['stop']}. The next "
                    "start of the broker truncates them",
                )  # fmt: skip
        for store in self._stores:
            back = sum(row["went_back"] for row in summary if row["store"] == store.number)
            if back:
                self._findings.add(
                    kinds.OTHER, note=True, messages=back, broker=store.label, file=store.root,
                    what=f"{back} messages have an earlier store time than one before them: the clock was "
                    "set back. Looking up messages by time may miss some",
                )  # fmt: skip

    # --- queues -------------------------------------------------------------------------------------

    def covers(self, runs: Iterable[TableRow]) -> dict[Where, Cover]:
        """Return the queue offsets in the log of each queue. Add gaps and offsets used twice as findings."""
        by_queue: dict[Where, list[tuple[int, int, int, int]]] = defaultdict(list)
        for row in runs:
            key = (row["store"], row["topic"], row["queue_id"])
            by_queue[key].append((row["first"], row["last"], row["first_place"], row["last_place"]))
        found = {key: cover(each) for key, each in by_queue.items()}
        for (number, topic, queue_id), each in sorted(found.items()):
            store = self._stores[number]
            about: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
            for gap in each.damaged:
                self._damaged.add((number, gap.place))
                self._findings.add(
                    kinds.DAMAGED_FIELDS, **self._in_log(store, gap.place), **about, queue_offset=gap.first,
                    messages=gap.last - gap.first,
                    what=f"the record has the queue offset {gap.first}, which the records around it "
                    "contradict",
                )  # fmt: skip
            for gap in each.taken:
                count = gap.last - gap.first
                self._findings.add(
                    kinds.TAKEN, **self._in_log(store, gap.place), **about, queue_offset=gap.first,
                    messages=count, what=f"{_numbers(gap.first, gap.last)} used by an earlier message too",
                )  # fmt: skip
            if each.replaced:
                self._findings.add(
                    kinds.OTHER, note=True, **about, broker=store.label, messages=each.replaced,
                    file=store.queue_directory(topic, queue_id),
                    what=f"{each.replaced} older messages in the log are in no queue: the topic was deleted "
                    "and created again",
                )  # fmt: skip
        return found

    def entries(self, wrong: Iterable[TableRow], covers: Mapping[Where, Cover]) -> int:
        """Add entries that differ from their message. Returns the number of messages without an entry yet."""
        under_way = 0
        for row in _joined(wrong):
            store = self._stores[row["store"]]
            topic, queue_id, first, last = row["topic"], row["queue_id"], row["first"], row["last"]
            if row["physical_offset"] < covers[row["store"], topic, queue_id].begin_place:
                continue
            if (row["store"], row["physical_offset"]) in self._damaged:
                continue  # compared under a damaged queue offset
            count = last - first
            about: dict[str, Any] = {
                **self._in_queue(store, (topic, queue_id), first), "physical_offset": row["physical_offset"],
                "messages": count,
            }  # fmt: skip
            if row["kind"] in (MISSING, NO_QUEUE):
                if store.unsettled and row["physical_offset"] >= store.dispatched:
                    under_way += count  # the broker has not written the entry yet
                    continue
                if row["kind"] == NO_QUEUE:
                    deleted = store.topics is not None and topic not in store.topics
                    what = f"{count} messages have no queue" + (": the topic was deleted" if deleted else "")
                    kind = kinds.OTHER if deleted else kinds.MISSING_ENTRIES
                    self._findings.add(kind, note=deleted, **about, what=what)
                else:
                    what = f"{_numbers(first, last)} missing in the queue"
                    self._findings.add(kinds.MISSING_ENTRIES, **about, what=what)
                continue
            fault = row["kind"].removeprefix("wrong ")
            what = (
                f"{_numbers(first, last)} wrong: the entry has {fault} {row['found']}, the message "
                f"{row['wanted']}"
            )
            self._findings.add(
                kinds.WRONG_ENTRIES, **about, fault=row["kind"], expected=row["wanted"], found=row["found"],
                what=what,
            )  # fmt: skip
        return under_way

    def gaps(self, covers: Mapping[Where, Cover], lonely: Mapping[Where, Sequence[Lonely]]) -> None:
        """Add queue offsets and entries without a message. Both together at one gap are one finding."""
        for key in sorted({*covers, *lonely}):
            number, topic, queue_id = key
            store = self._stores[number]
            about = {"topic": topic, "queue_id": queue_id}
            entries = list(lonely.get(key, ()))
            for gap in covers[key].gaps if key in covers else ():
                inside = [each for each in entries if gap.first <= each.first and each.last <= gap.last]
                entries = [each for each in entries if each not in inside]
                count = gap.last - gap.first
                marked = sum(each.last - each.first for each in inside if each.is_hole) == count
                what = f"{_numbers(gap.first, gap.last)} in no message of the log"
                if marked:
                    what += "; an earlier repair marked them as lost"
                elif inside:
                    what += f"; the queue points to log offset {inside[0].place}"
                self._findings.add(
                    kinds.OTHER if marked else kinds.GAPS, note=marked,
                    **self._in_log(store, gap.place), **about, queue_offset=gap.first, messages=count,
                    what=what,
                )  # fmt: skip
            for each in entries:
                if each.is_hole:
                    continue
                self._findings.add(
                    kinds.LONELY_ENTRIES, **self._in_queue(store, (topic, queue_id), each.first),
                    physical_offset=each.place, messages=each.last - each.first, points_at=each.place,
                    what=f"{_numbers(each.first, each.last)} listed, but this queue has no message at log "
                    f"offset {each.place}",
                )  # fmt: skip

    # --- messages -----------------------------------------------------------------------------------

    def duplicates(self, rows: Sequence[TableRow], count: int) -> None:
        for row in rows:
            first, *others = row["places"]
            store = self._stores[first["store"]]
            places = [self._place(place) for place in row["places"]]
            self._findings.add(
                kinds.DUPLICATES, **self._in_log(store, first["physical_offset"]), topic=row["topic"],
                queue_id=first["queue_id"], queue_offset=first["queue_offset"], messages=row["copies"],
                msg_id=row["msg_id"], copies=row["copies"], places=places, stored=_time(first["stored_ms"]),
                what=f"message {row['msg_id']} is stored {row['copies']} times; again at "
                + ", ".join(self._place(place) for place in others[:3]),
            )  # fmt: skip
        self._findings.not_kept[kinds.DUPLICATES.name] += count - len(rows)

    def copies(self, rows: Iterable[TableRow]) -> None:
        """Add a note for the copies made on purpose, by the program that made them."""
        by: dict[tuple[str, str], list[TableRow]] = defaultdict(list)
        for row in rows:
            by[row["topic"], row["made_by"]].append(row)
        for (topic, made_by), each in sorted(by.items()):
            count = sum(row["messages"] for row in each)
            first = min(each, key=lambda row: (row["store"], row["physical_offset"]))
            store = self._stores[first["store"]]
            self._findings.add(
                kinds.OTHER, note=True, **self._in_log(store, first["physical_offset"]), topic=topic,
                messages=count,
                what=f"{count} messages are copies made on purpose by kerolox {made_by}, not duplicates, "
                "although they have the unique keys of their originals",
            )  # fmt: skip

    def _place(self, place: TableRow) -> str:
        label = f"{self._stores[place['store']].label} " if len(self._stores) > 1 else ""
        where = f"queue {place['queue_id']} offset {place['queue_offset']}"
        return f"{label}{where} (log {place['physical_offset']})"

    def halves(self, rows: Iterable[TableRow], now_ms: int) -> int:
        """Add open half messages. Returns the number that are too young to be a finding."""
        young = 0
        for row in rows:
            age_ms = now_ms - row["stored_ms"]
            if age_ms < HALF_OPEN_MS:
                young += 1
                continue
            store = self._stores[row["store"]]
            checks = int(row["checks"]) if (row["checks"] or "").isdigit() else 0
            self._findings.add(
                kinds.OPEN_HALVES, **self._in_log(store, row["physical_offset"]), topic=row["real_topic"],
                queue_offset=row["queue_offset"], msg_id=row["msg_id"], producer_group=row["producer_group"],
                age_s=age_ms // 1000, checks=checks, born=_time(row["born_ms"]),
                stored=_time(row["stored_ms"]),
                what=f"of producer group {row['producer_group']}, open for {duration(age_ms)}, "
                f"checked {checks} times",
            )  # fmt: skip
        return young

    def hot_spots(
        self, rows: Iterable[TableRow], totals: Mapping[str, int], resent: Mapping[tuple[str, str], int]
    ) -> None:
        """Add retries and dead letters. ``resent``: number of dead letters sent again, by group and topic."""
        for row in rows:
            dead = row["kind"] == "dead letters"
            kind = kinds.DEAD_LETTERS if dead else kinds.RETRIES
            prefix = DEAD_LETTER_PREFIX if dead else RETRY_PREFIX
            count, total = row["messages"], totals.get(row["topic"], 0)
            share = count / total if total and not row["topic"].startswith(prefix) else None
            again = resent.get((row["group"], row["topic"]), 0) if dead else 0
            left = count - again
            hot = left >= DEAD_LETTERS_HOT or (
                share is not None and left > 0 and left / total >= DEAD_LETTERS_SHARE_HOT
            )
            store = self._stores[row["first"]["store"]]
            done = f"; {'all' if not left else again} sent again since" if again else ""
            of = "" if share is None else f" ({share:.2%} of the topic's messages)"
            peak = _time(row["peak_minute"] * 60_000)
            self._findings.add(
                kind, note=not (dead and hot), **self._in_log(store, row["first"]["physical_offset"]),
                topic=row["topic"], messages=count, consumer_group=row["group"], tag=row["tag"], share=share,
                reconsume_times_max=row["reconsume_times_max"],
                first_minute=_time(row["first_minute"] * 60_000),
                last_minute=_time(row["last_minute"] * 60_000), peak_minute=peak,
                peak_messages=row["peak_messages"], resent=again if dead else None,
                what=f"group {row['group']}: {count} {row['kind']}{of}, the most at {peak:%Y-%m-%d %H:%M} "
                f"({row['peak_messages']} in that minute){done}",
            )  # fmt: skip

    def clocks(self, rows: Iterable[TableRow]) -> None:
        for row in rows:
            if row["negative"]:
                self._findings.add(
                    kinds.OTHER, note=True, topic=row["topic"], messages=row["negative"],
                    what=f"{row['negative']} messages have a born time after their store time, by up to "
                    f"{-row['least']} ms: a producer's clock is ahead of the broker's",
                )  # fmt: skip

    # --- places -------------------------------------------------------------------------------------

    def _in_log(self, store: StorePlan, place: int) -> dict[str, Any]:
        path, at = store.log.where(place)
        return {"broker": store.label, "file": path, "file_offset": at, "physical_offset": place}

    def _in_queue(self, store: StorePlan, key: QueueKey, offset: int) -> dict[str, Any]:
        directory = store.queue_directory(*key)
        run = self._runs.get(directory)
        if run is None:
            run = self._runs[directory] = store.queue_files(*key)
        path, at = run.where(offset * SIMPLE.size) if run.pieces else (run.directory, None)
        return {
            "broker": store.label, "topic": key[0], "queue_id": key[1], "queue_offset": offset, "file": path,
            "file_offset": at,
        }  # fmt: skip


def _joined(wrong: Iterable[TableRow]) -> list[dict[str, Any]]:
    """Join ranges of wrong entries that continue in the next part of the log."""
    joined: list[dict[str, Any]] = []
    same = ("store", "topic", "queue_id", "kind")
    for row in sorted(wrong, key=lambda row: (row["store"], row["topic"], row["queue_id"], row["first"])):
        last = joined[-1] if joined else None
        if last is not None and last["last"] == row["first"] and all(last[n] == row[n] for n in same):
            last["last"] = row["last"]
        else:
            joined.append(dict(row))
    return joined


def _numbers(first: int, last: int) -> str:
    return f"queue offset {first} is" if last - first == 1 else f"queue offsets {first} to {last - 1} are"


def _time(ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


def duration(ms: float) -> str:
    """Return a duration as text, such as 12 ms, 3.4 s, 5 min, 2.5 h or 3.0 days."""
    units: tuple[tuple[float, str, Callable[[float], str]], ...] = (
        (86_400_000, "days", lambda n: f"{n:.1f}"), (3_600_000, "h", lambda n: f"{n:.1f}"),
        (60_000, "min", lambda n: f"{n:.0f}"), (1000, "s", lambda n: f"{n:.3g}"),
    )  # fmt: skip
    for size, unit, text in units:
        if abs(ms) >= size:
            return f"{text(ms / size)} {unit}"
    return f"{ms:g} ms"
