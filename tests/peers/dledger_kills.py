"""``make dledger``: kills in DLedger groups of Apache's brokers and ours, and what came of them.

Senders go on all the time. A member is killed (SIGKILL), the leader more often than not, and started again
while messages are sent, as soon as somebody takes them. At the end every member has the same entries, and
everything that was acknowledged is among them. No broker of ours gave a queue offset that was given before.
Members of Apache's were seen to: perhaps because after a kill their queues lack messages
(apache/rocketmq#7355, #7477), and one that leads then counts on from there. How often is written down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kerolox.protocol.ledger_entry import ENTRY_HEAD_BYTES, LedgerEntry
from kerolox.protocol.ledger_scan import decode_head
from kerolox.protocol.record_scan import QUEUE_ID, QUEUE_OFFSET, TOPIC, scan
from kerolox.testing.nameserver import running_nameserver

from .conftest import Factory
from .dledger import LedgerGroupProcesses
from .jars import get_jars
from .ours import OurBroker

TOPIC_SENT = "kills"
SENDERS = 3
PAUSE_S = 0.02  # after each message: the machine has others to serve
GROUPS = {"apache-apache-ours": ["apache", "apache", "ours"], "apache-ours-ours": ["apache", "ours", "ours"]}


class Load:
    """Senders, and what they were told."""

    def __init__(self, group: LedgerGroupProcesses, prefix: str) -> None:
        self.group = group
        self.prefix = prefix
        self.acked: set[bytes] = set()
        self.sent = 0
        self.last_s = time.monotonic()  # when the last one was acknowledged
        self.gap_s = 0.0  # the longest time in which none was, since it was asked
        self._stop = False
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(SENDERS)]

    async def _send(self, sender: int) -> None:
        at = ""
        while not self._stop:
            if not at or not self.group.brokers[at].running:
                at = self.group.registered_leader() or ""
                if not at:
                    await asyncio.sleep(0.05)
                    continue
            self.sent += 1
            body = b"%b-%d-%d" % (self.prefix.encode(), sender, self.sent)
            code = await self.group.try_send(at, body, TOPIC_SENT, queue_id=sender)
            if code == 0:
                self.acked.add(body)
                now_s = time.monotonic()
                self.gap_s = max(self.gap_s, now_s - self.last_s)
                self.last_s = now_s
                await asyncio.sleep(PAUSE_S)
            else:
                at = ""
                await asyncio.sleep(0.05)

    async def acknowledged_again(self, timeout_s: float = 180.0) -> None:
        before = len(self.acked)
        deadline_s = time.monotonic() + timeout_s
        while len(self.acked) < before + 5:
            assert time.monotonic() < deadline_s, "nothing is acknowledged any more"
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


async def kill_in(name: str, kills: int, seed: int, folder: Path, until_s: float) -> dict[str, Any]:
    """So many kills in one group, or as many as there is time for; what came of them. Raises
    AssertionError."""
    chance = random.Random(seed)
    java = Factory(get_jars(None), folder / "java")
    killed: Counter[str] = Counter()
    gaps: list[float] = []
    async with running_nameserver() as nameserver:
        group = LedgerGroupProcesses(java, nameserver, folder, "RaftNode00", GROUPS[name])
        try:
            await group.start()
            await group.leader()
            load = Load(group, name)
            await load.acknowledged_again()
            for number in range(kills):
                if time.monotonic() > until_s:
                    break
                leader = group.registered_leader()
                wants_leader = leader is not None and chance.random() < 0.6
                victim = leader if wants_leader and leader is not None else chance.choice(list(group.brokers))
                kind = "ours" if isinstance(group.brokers[victim], OurBroker) else "apache"
                killed[f"{kind} {'leader' if victim == leader else 'follower'}"] += 1
                load.gap_s = 0.0
                await asyncio.to_thread(group.brokers[victim].kill)
                await load.acknowledged_again()
                if victim == leader:
                    gaps.append(round(load.gap_s, 2))
                await group.start(victim)
                await joined(group, victim)
                progress(
                    f"{name}: {number + 1} of {kills}, acknowledged {len(load.acked)}, gap {load.gap_s:.1f} s"
                )
            await load.acknowledged_again()
            await load.stop()
            entries = await alike(group, load.acked)
            given_twice = offsets_given_twice(group, entries)
        finally:
            group.finish()
            java.finish()
    gaps.sort()
    return {
        "kills": killed.total(),
        "killed": dict(sorted(killed.items())),
        "terms": len({entry.term for entry in entries}),
        "entries": len(entries),
        "sent": load.sent,
        "acknowledged": len(load.acked),
        "acknowledged_lost": 0,  # the first one ends the run with an error
        "offsets_given_twice_by_apache": given_twice,
        "gap_s_after_a_leader": {"p50": gaps[len(gaps) // 2], "max": gaps[-1]} if gaps else {},
    }


async def joined(group: LedgerGroupProcesses, member: str) -> None:
    """Wait until it follows, or leads."""
    deadline_s = time.monotonic() + 120
    while await group.leader_by(member) is None:
        assert time.monotonic() < deadline_s, f"{member} finds no leader"
        await asyncio.sleep(0.1)


async def alike(group: LedgerGroupProcesses, acked: set[bytes]) -> list[LedgerEntry]:
    """Wait until the files of all members hold the same entries, all that was acknowledged among them."""
    await group.leader()  # which sends something: the last commits are told with it
    deadline_s = time.monotonic() + 120
    while True:
        logs = {name: read_entries(one.store) for name, one in group.brokers.items()}
        # Behind the end of a log there may be entries that were cut off, until others take their place.
        common = min(len(log) for log in logs.values())
        first, *others = [log[:common] for log in logs.values()]
        missing = acked - {body_of(entry.body) for entry in first}
        if not missing and all(first == other for other in others):
            break
        ends = {name: log[-1].index if log else -1 for name, log in logs.items()}
        assert time.monotonic() < deadline_s, (
            f"logs end at {ends}, and {len(missing)} of {len(acked)} acknowledged messages are not in all of "
            f"them: {sorted(missing)[:5]}"
        )
        await asyncio.sleep(1)
    return first


def offsets_given_twice(group: LedgerGroupProcesses, entries: list[LedgerEntry]) -> int:
    """How many queue offsets Apache's brokers gave that had been given before. Raises AssertionError for one
    of ours."""
    ours = {one.port for one in group.brokers.values() if isinstance(one, OurBroker)}
    given: set[tuple[int, int]] = set()
    twice = 0
    for entry in entries:
        (record,) = scan(entry.body, count_max=1, lies_at=entry.pos + ENTRY_HEAD_BYTES).entries
        if record[TOPIC] not in (TOPIC_SENT, TOPIC_SENT.encode()):
            continue
        place = record[QUEUE_ID], record[QUEUE_OFFSET]
        if place in given:
            port = int.from_bytes(entry.body[68:72], "big")  # of the broker that stored it
            assert port not in ours, f"ours gave {place} again, in entry {entry.index} of term {entry.term}"
            twice += 1
        given.add(place)
    return twice


def read_entries(store: Path) -> list[LedgerEntry]:
    """All entries of a member's data files."""
    found: list[LedgerEntry] = []
    for path in sorted(store.glob("dledger-*/data/[0-9]*")):
        data, at = path.read_bytes(), 0
        while at + ENTRY_HEAD_BYTES <= len(data):
            unit = decode_head(data, at)
            if unit is None:
                break
            if (
                unit.index != (found[-1].index + 1 if found else unit.index)
                or unit.pos != int(path.name) + at
            ):
                break  # behind the end: left there by a cut
            if found and unit.term < found[-1].term:
                break
            body = data[at + ENTRY_HEAD_BYTES : at + unit.size]
            found.append(LedgerEntry(unit.index, unit.term, unit.pos, body))
            at += unit.size
    return found


def body_of(record: bytes) -> bytes:
    length = int.from_bytes(record[84:88], "big")  # hosts are of four bytes here
    return record[88 : 88 + length]


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def kill_in_all(args: argparse.Namespace, folder: Path, until_s: float) -> dict[str, Any]:
    """All groups at the same time."""
    share = -(-args.kills // len(GROUPS))
    done = await asyncio.gather(
        *(kill_in(name, share, args.seed + turn, folder / name, until_s) for turn, name in enumerate(GROUPS))
    )
    return dict(zip(GROUPS, done, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.peers.dledger_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="in all groups together")
    parser.add_argument("--minutes", type=float, default=600, help="to kill; what was done by then counts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kerolox-dledger-") as folder:
        groups = asyncio.run(kill_in_all(args, Path(folder), began_s + args.minutes * 60))
    result = {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "apache": get_jars(None).version,
        "seconds": round(time.monotonic() - began_s),
        "kills": sum(group["kills"] for group in groups.values()),
        "groups": groups,
        "violations": 0,
    }
    text = json.dumps(result, indent=2) + "\n"
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")
    progress(text)


if __name__ == "__main__":
    main()
