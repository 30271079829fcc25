"""Flip and zero bytes in every file of a store: it serves everything then, or refuses and says how to mend.

An image is a store as it was left: stopped or killed, ours or Apache's. A trial copies it, damages one place,
and opens it. What must hold:

* it opens, and everything that was acknowledged is there, byte for byte: by queue offset, by key, and what
  waits for its time; or
* it refuses, naming a file of the store and a command or a step that mends it. Who follows that gets
  everything but what lay in the damaged place itself.

Nothing else is allowed: no message missing, no other one in its place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.cli.main import app
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_record
from kerolox.store.message_store import MessageStore
from kerolox.store.options import StoreOptions
from kerolox.store.queue.entry import BLANK_SIZE, SIMPLE
from kerolox.store.queue.extended_queue import ExtendedQueue

from .verify import Violation

HOUR_MS = 3_600_000
SIZES = {
    "commit_log_file_bytes": 64 * 1024,
    "queue_file_bytes": 20 * 100,
    "index_slots": 300,
    "index_entries": 2000,
    "record_crc": True,  # without it nothing can tell a flipped byte in the properties of a message
    "disk_free_enough": 1,
    "timer_log_file_bytes": 52 * 10 + 16,
    "bind_address": "127.0.0.1",
    "advertised_host": "127.0.0.1",
    "listen_port": 0,
    "broker_name": "damaged",
}
# Whose damage shows in the tables of a broker, its timers or its delays, not in the store itself.
OF_BROKER = ("config/", "timerwheel", "timerlog/", "kerolox.timer", "kerolox.delays")
_COMMAND = re.compile(r"kerolox store repair (\S+) (--skip|--cut) (\d+)")


def broker_options(root: Path, **changes: Any) -> BrokerOptions:
    return BrokerOptions(store_path=str(root), **{**SIZES, **changes})


def store_options(root: Path, sizes: dict[str, Any]) -> StoreOptions:
    names = StoreOptions.__dataclass_fields__
    return StoreOptions(store_path=str(root), **{k: v for k, v in sizes.items() if k in names})


# --- what a store holds ------------------------------------------------------------------------------------


@dataclass
class Held:
    """Everything a store serves: by queue, by key, by filter."""

    records: dict[tuple[str, int], dict[int, bytes]]  # by queue offset
    ends: dict[tuple[str, int], int]
    codes: dict[tuple[str, int], dict[int, int]]  # what filters, and those who wait for a time, look at
    keys: dict[tuple[str, str], list[bytes]]

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))


async def held_by(store: MessageStore) -> Held:
    held = Held({}, {}, {}, {})
    for queue in store.consume_queues:
        key = queue.topic, queue.queue_id
        if not queue.max_offset:
            continue
        held.ends[key] = queue.max_offset
        records = held.records[key] = {}
        codes = held.codes[key] = {}
        offset = queue.min_offset
        while offset < queue.max_offset:
            read = await store.queues.read(*key, offset)
            at = 0
            data = b"".join(read.parts)
            while at < len(data):
                size = int.from_bytes(data[at : at + 4], "big")
                record = data[at : at + size]
                records[decode_record(record).queue_offset] = record
                at += max(size, 1)
            if read.next_offset <= offset:
                raise Violation(f"{key} does not go on behind {offset}: {read.status}")
            offset = read.next_offset
        entries = queue.read(queue.min_offset, queue.max_offset - queue.min_offset)
        for number, (_, size, code) in enumerate(SIMPLE.each(entries), queue.min_offset):
            if size != BLANK_SIZE and number in records:
                units = queue.extension.units([code]) if isinstance(queue, ExtendedQueue) else {}
                codes[number] = units[code].tags_code if code in units else code
    return held


async def ask_keys(store: MessageStore, wanted: dict[tuple[str, str], list[bytes]]) -> Iterator[str]:
    """Complaints about keys that do not lead where they did."""
    complaints = []
    for (topic, key), expected in wanted.items():
        if sorted(await store.find_by_key(topic, key, 64)) != sorted(expected):
            complaints.append(f"key {key} of {topic} does not find what it did")
    return iter(complaints)


def keys_of(held: Held) -> dict[tuple[str, str], list[bytes]]:
    keys: dict[tuple[str, str], list[bytes]] = {}
    for records in held.records.values():
        for record in records.values():
            message = decode_record(record)
            for word in message.properties.get("KEYS", "").split():
                keys.setdefault((message.topic, word), []).append(record)
    return keys


# --- images ----------------------------------------------------------------------------------------------


@dataclass
class Image:
    """A store as it was left, and what it held then."""

    name: str
    root: Path
    sizes: dict[str, Any]
    held: Held
    timers: Counter[tuple[int, int]] = field(default_factory=Counter)  # place in the log, moment
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())


async def make_image(folder: Path, name: str, *, count: int = 240, **changes: Any) -> Image:
    """Let a broker write; ``name`` says how it is left: stopped or killed."""
    root = folder / f"live-{name}"
    options = broker_options(root, **changes)
    image = Image(name, folder / name, {**SIZES, **changes}, Held({}, {}, {}, {}))
    async with Broker(options) as broker, Dialer() as dialer:
        await _send(broker.address, dialer, count)
        while broker.later.timers.arrivals.behind:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        broker.tables.offsets.commit("A", "g", 0, count // 8)
        broker.tables.offsets.commit("A", "g", 1, 3)
        await broker.store.flusher.flush_all()
        await broker.later.timers.flush()
        image.held = await held_by(broker.store)
        image.held.keys = keys_of(image.held)
        image.timers = timers_of(broker)
        image.offsets = {"A@g": dict(broker.tables.offsets.offsets["A@g"])}
        if "killed" in name:
            broker.tables.offsets.save()
            await broker.store.housekeeper.flush()
            copy_tree(root, image.root)
    if "killed" not in name:
        copy_tree(root, image.root)
    shutil.rmtree(root)
    return image


async def _send(address: str, dialer: Dialer, count: int) -> None:
    now_ms = int(time.time() * 1000)
    for number in range(count):
        properties = {
            "UNIQ_KEY": f"{number:032X}",
            "KEYS": f"k{number} all{number % 7}",
            "TAGS": f"t{number % 3}",
        }
        topic = "AB"[number % 2]
        sys_flag = 0
        if number % 20 == 7:
            properties["DELAY"] = "18"
        elif number % 10 == 3:
            properties["TIMER_DELIVER_MS"] = str(now_ms + 5 * HOUR_MS + number % 4 * 1000)
        elif number % 40 == 9:
            properties |= {"TRAN_MSG": "true", "PGROUP": "p"}
            sys_flag = 0x4
        header = SendRequestV2(
            producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=2,
            queue_id=number // 2 % 2, sys_flag=sys_flag, born_timestamp=now_ms, flag=0,
            properties=pack(properties).decode(),
        )  # fmt: skip
        body = b"<%d>" % number + bytes([number % 251]) * (number * 37 % 400)
        answer = await dialer.call(address, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=30)
        if answer.code != 0:
            raise AssertionError(f"{answer.code} {answer.remark}")


def make_java_image(folder: Path, name: str, *, count: int = 240) -> Image:
    """The same by Apache's broker. Raises PeersUnavailable where there is none."""
    from tests.peers.jars import get_jars
    from tests.peers.processes import JavaBroker

    properties = {
        "mappedFileSizeCommitLog": SIZES["commit_log_file_bytes"],
        "mappedFileSizeConsumeQueue": SIZES["queue_file_bytes"],
        "maxHashSlotNum": SIZES["index_slots"],
        "maxIndexNum": SIZES["index_entries"],
        "mappedFileSizeTimerLog": SIZES["timer_log_file_bytes"],
        "enabledAppendPropCRC": True,
        "transactionTimeOut": HOUR_MS,
        "transactionCheckInterval": HOUR_MS,
    }
    home = folder / f"java-{name}"
    broker = JavaBroker(get_jars(), home, "127.0.0.1:9", properties=properties, wait_registered=False)
    root = folder / name
    broker.start()
    try:
        asyncio.run(_send_to(broker.address, count))
        time.sleep(3)  # its queues follow by themselves
        if "killed" in name:
            broker.kill()
        else:
            broker.stop()
    finally:
        broker.kill()
    copy_tree(broker.store, root)
    # What it holds is what our store reads of it undamaged; the gate's own tests compare that with Apache's.
    image = Image(name, root, dict(SIZES), Held({}, {}, {}, {}))
    copy_tree(root, folder / "look")
    asyncio.run(_look(image, folder / "look"))
    shutil.rmtree(folder / "look")
    if image.held.count < count:
        raise AssertionError(f"{image.held.count} of {count} messages are there")
    return image


async def _send_to(address: str, count: int) -> None:
    async with Dialer() as dialer:
        await _send(address, dialer, count)


async def _look(image: Image, root: Path) -> None:
    async with Broker(broker_options(root)) as broker:
        image.held = await held_by(broker.store)
        image.held.keys = keys_of(image.held)
        while broker.later.timers.arrivals.behind:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        image.timers = timers_of(broker)


def timers_of(broker: Broker) -> Counter[tuple[int, int]]:
    """Every message that waits for a time: where it lies, and its moment."""
    files = broker.later.timers.files
    found: Counter[tuple[int, int]] = Counter()
    for moment, slot in files.wheel.slots():
        for unit in files.log.units(files.log.chain(slot.last).places):
            found[unit.physical, moment] += 1
    return found


def copy_tree(source: Path, target: Path) -> None:
    """With its holes: a timer wheel is 39 MB of nothing."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-r", "--sparse=always", str(source), str(target)], check=True)


# --- damage ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Harm:
    """What is done to one file."""

    path: str
    how: str  # flip, zero
    at: int
    size: int = 1

    def do(self, root: Path) -> None:
        with open(root / self.path, "r+b") as file:
            file.seek(self.at)
            old = file.read(self.size)
            file.seek(self.at)
            file.write(bytes(len(old)) if self.how == "zero" else bytes([old[0] ^ 1 << self.size % 8]))


def harms(image: Image, chance: random.Random, count: int) -> Iterator[Harm]:
    """Places in all files, mostly where something is written: each file has its turn."""
    written = {name: _written(image.root / name) for name in image.files()}
    names = [name for name in written if written[name]]
    for turn in range(count):
        name = names[turn % len(names)]
        low, high = chance.choice(written[name])
        at = chance.randrange(low, high)
        if chance.random() < 0.7:
            yield Harm(name, "flip", at, chance.randrange(1, 9))
        else:
            yield Harm(name, "zero", at, min(chance.choice((1, 4, 20, 52, 512, 4096)), high - at))


def _written(path: Path) -> list[tuple[int, int]]:
    """Where a file has anything but zeros, in pieces of 64 bytes."""
    if path.stat().st_size > 1 << 20:
        with open(path, "rb") as file:
            low, places = 0, []
            while True:
                try:
                    low = os.lseek(file.fileno(), low, os.SEEK_DATA)
                except OSError:
                    break
                high = os.lseek(file.fileno(), low, os.SEEK_HOLE)
                file.seek(low)
                places += _pieces(file.read(high - low), low)
                low = high
        return places
    return _pieces(path.read_bytes(), 0)


def _pieces(data: bytes, start: int) -> list[tuple[int, int]]:
    found = []
    for at in range(0, len(data), 64):
        piece = data[at : at + 64]
        if piece.strip(b"\0"):
            found.append((start + at, start + at + len(piece.rstrip(b"\0"))))
    return found


# --- trials ----------------------------------------------------------------------------------------------


class Said(logging.Handler):
    """What was logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.getMessage().startswith("no_nameserver"):
            self.lines.append(record.getMessage())


@dataclass
class Tally:
    """What a number of places came to."""

    places: Counter[str] = field(default_factory=Counter)  # by kind of file
    outcomes: Counter[str] = field(default_factory=Counter)

    def dump(self) -> dict[str, Any]:
        return {
            "places": sum(self.places.values()),
            "by_file": dict(sorted(self.places.items())),
            "outcomes": dict(sorted(self.outcomes.items())),
        }


class Trial:
    """One image, damaged again and again."""

    def __init__(self, image: Image, folder: Path, tally: Tally | None = None) -> None:
        self.image = image
        self.root = folder / f"trial-{image.name}"
        self.tally = Tally() if tally is None else tally

    def run(self, harm: Harm) -> str:
        image = self.image
        copy_tree(image.root, self.root)
        harm.do(self.root)
        said = Said()
        root_logger = logging.getLogger("kerolox")
        root_logger.addHandler(said)
        try:
            outcome = asyncio.run(self._open(harm, said))
        except Violation as error:
            raise Violation(f"{image.name}: {harm}: {error}\n" + "\n".join(said.lines[-8:])) from error
        finally:
            root_logger.removeHandler(said)
        self.tally.places[kind_of(harm.path)] += 1
        self.tally.outcomes[outcome] += 1
        return outcome

    async def _open(self, harm: Harm, said: Said) -> str:
        try:
            complaints = await self._complaints(harm.path, self.image.held)
        except KeroloxError as error:
            return await self._mend(harm, str(error))
        if (
            complaints
            and self.image.name == "apache-killed"
            and any(line.startswith(("unflushed_records_cut", "torn_record_cut")) for line in said.lines)
        ):
            # Of a store that RocketMQ's broker left nobody can tell a kill from a loss of power, which may
            # take what its checkpoint does not call flushed.
            return "cut off as never flushed, and said"
        if complaints:
            raise Violation("; ".join(complaints[:3]))
        return "served, and said" if said.lines else "served"

    async def _mend(self, harm: Harm, refusal: str) -> str:
        """Do what the refusal says, until it serves."""
        lost: list[tuple[int, int]] = []
        for _ in range(20):
            if str(self.root) not in refusal:
                raise Violation(f"the refusal names no file: {refusal}")
            command = _COMMAND.search(refusal)
            if command is None:
                return await self._mend_by_hand(harm, refusal)
            root, option, offset = command.groups()
            follow = re.search(r"valid records follow from offset (\d+)", refusal)
            end = int(follow[1]) if follow and option == "--skip" else 1 << 62
            lost.append((int(offset), end))
            more = self._command("store", "repair", root, option, offset, "--yes")
            if more:
                refusal = more  # the next damage, and its command
                continue
            try:
                complaints = await self._complaints(harm.path, without(self.image.held, lost), mended=True)
            except KeroloxError as error:
                refusal = str(error)
                continue
            if complaints:
                raise Violation(f"after {command[0]}: " + "; ".join(complaints[:3]))
            if not any(low <= self._log_place(harm) < high or harm.size > 1 for low, high in lost):
                raise Violation(f"{command[0]} gave up what was not damaged: {lost}")
            return f"refused, mended by {option}"
        raise Violation(f"no end of mending: {refusal}")

    async def _mend_by_hand(self, harm: Harm, refusal: str) -> str:
        """Where the step is to restore the file: that must do."""
        if not re.search(r"[Rr]estore|[Rr]epair|[Mm]ove|[Rr]emove|[Ss]et ", refusal):
            raise Violation(f"the refusal names no next step: {refusal}")
        shutil.copy(self.image.root / harm.path, self.root / harm.path)
        complaints = await self._complaints(harm.path, self.image.held)
        if complaints:
            raise Violation("after the file was restored: " + "; ".join(complaints[:3]))
        return "refused, mended by hand"

    def _log_place(self, harm: Harm) -> int:
        return int(Path(harm.path).name) + harm.at if harm.path.startswith("commitlog/") else -1

    def _command(self, *words: str) -> str:
        """Run it. What it says if it found more damage."""
        config = self.root.parent / f"{self.image.name}.conf"
        sizes = self.image.sizes
        config.write_text(
            f"storePathRootDir={self.root}\nmappedFileSizeCommitLog={sizes['commit_log_file_bytes']}\n"
            f"mappedFileSizeConsumeQueue={sizes['queue_file_bytes']}\n"
            f"maxHashSlotNum={sizes['index_slots']}\nmaxIndexNum={sizes['index_entries']}\n"
        )
        done = CliRunner().invoke(app, [*words, "-c", str(config)])
        if done.exit_code and _COMMAND.search(done.output):
            return done.output
        if done.exit_code:
            raise Violation(f"kerolox {' '.join(words)} ended with {done.exit_code}: {done.output[-500:]}")
        return ""

    async def _complaints(self, path: str, wanted: Held, *, mended: bool = False) -> list[str]:
        """Open and look; what is not as it was. Raises when the start is refused."""
        image = self.image
        if path.startswith(OF_BROKER):
            async with Broker(broker_options(self.root, **image.sizes)) as broker:
                complaints = await self._compare(broker.store, wanted)
                timers = timers_of(broker)
                while broker.later.timers.arrivals.behind:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                timers = timers_of(broker)
                if missing := image.timers - timers:
                    complaints.append(f"{len(missing)} of {len(image.timers)} timers are gone")
                if "consumerOffset" not in path:
                    for key, offsets in image.offsets.items():
                        if broker.tables.offsets.offsets.get(key) != offsets:
                            complaints.append(f"offsets are {broker.tables.offsets.offsets.get(key)}")
                return complaints
        store = MessageStore(store_options(self.root, image.sizes))
        await store.open()
        try:
            return await self._compare(store, wanted)
        finally:
            await store.close()

    async def _compare(self, store: MessageStore, wanted: Held) -> list[str]:
        held = await held_by(store)
        complaints: list[str] = []
        for key, records in wanted.records.items():
            got = held.records.get(key, {})
            missing = [offset for offset in records if offset not in got]
            other = [offset for offset in records if got.get(offset, records[offset]) != records[offset]]
            if missing:
                complaints.append(f"{key} lacks {len(missing)} messages, the first is {missing[0]}")
            if other:
                complaints.append(f"{key} has another message at {other[0]}")
            codes = held.codes.get(key, {})
            if wrong := [o for o, code in wanted.codes[key].items() if o in got and codes.get(o) != code]:
                complaints.append(f"{key} has another tag or time at {wrong[0]}")
            if held.ends.get(key, 0) < wanted.ends[key]:
                complaints.append(f"{key} ends at {held.ends.get(key, 0)}, not {wanted.ends[key]}")
        return complaints + list(await ask_keys(store, wanted.keys))


def without(held: Held, lost: list[tuple[int, int]]) -> Held:
    """The same without what lay in these parts of the log."""

    def stays(record: bytes) -> bool:
        at = int.from_bytes(record[28:36], "big")
        return not any(at < high and low < at + len(record) for low, high in lost)

    left = Held(
        {key: {o: r for o, r in records.items() if stays(r)} for key, records in held.records.items()},
        {},
        {},
        {key: kept for key, found in held.keys.items() if (kept := [r for r in found if stays(r)])},
    )
    left.codes = {key: {o: held.codes[key][o] for o in left.records[key]} for key in left.records}
    left.ends = {key: max(records, default=-1) + 1 for key, records in left.records.items()}
    return left


def kind_of(path: str) -> str:
    head, _, _ = path.partition("/")
    return path.split("/")[1] if head == "config" else head
