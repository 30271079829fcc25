"""A million messages that wait for their time: memory, the event loop's lag, start, and catching up.

One broker in this process, messages put into it without a client. Its clock is moved, so that two days pass
at once: then all that waited is overdue. Bodies are 100 bytes; files are of the usual sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from bench import machine
from bench.results import Result, Table, number
from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.clock import Clock
from kerolox.net.loop import run
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.properties import pack

TOPIC = "timed"
BODY = bytes(100)
HOST = host_bytes("127.0.0.1:1")
BATCH = 200
SPREAD_S = 172_000
AHEAD_S = 600  # nothing falls due while messages are parked
LAG_TICK_S = 0.005


class MovedClock(Clock):
    """The system's clock, some time ahead."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


class Lag:
    """How late the loop comes."""

    def __init__(self) -> None:
        self.all: list[float] = []
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            due_s = time.perf_counter() + LAG_TICK_S
            await asyncio.sleep(LAG_TICK_S)
            self.all.append(max(0.0, time.perf_counter() - due_s))

    def stop(self) -> tuple[float, float]:
        """The 99th percentile and the worst, ms."""
        self._task.cancel()
        found = sorted(self.all) or [0.0]
        return found[int(len(found) * 0.99)] * 1000, found[-1] * 1000


def memory_mib() -> float:
    """What this process has for itself."""
    gc.collect()
    return float(psutil.Process().memory_full_info().uss) / (1 << 20)


@asynccontextmanager
async def serving(folder: Path, clock: Clock) -> AsyncIterator[tuple[Broker, float]]:
    """A broker, and how long it took to start."""
    options = BrokerOptions(
        store_path=str(folder), bind_address="127.0.0.1", advertised_host="127.0.0.1", listen_port=0,
        broker_name="bench", disk_percent_max=95,
    )  # fmt: skip
    began_s = time.perf_counter()
    async with Broker(options, clock=clock) as broker:
        yield broker, time.perf_counter() - began_s


async def park(broker: Broker, count: int, spread_s: int) -> None:
    chance = random.Random(1)
    number = 0
    one_ms = broker.clock.wall_ms() + AHEAD_S * 1000
    while number < count:
        now_ms = broker.clock.wall_ms()
        for _ in range(min(BATCH, count - number)):
            due_ms = one_ms + (chance.randrange(spread_s * 1000) if spread_s else 0)
            properties = pack({"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"{number:032X}"})
            broker.write_path.intake.append_or_park(PendingMessage(TOPIC, 0, BODY, properties, now_ms, HOST))
            number += 1
        await broker.write_path.intake.written()
        await asyncio.sleep(0)
    while broker.later.timers.arrivals.behind:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def delivered(broker: Broker, count: int) -> float:
    """When the first and the last came: messages a second."""
    began_s = time.perf_counter()
    while broker.store.queues.max_offset(TOPIC, 0) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return count / (time.perf_counter() - began_s)


async def measure(count: int, spread_s: int, folder: Path) -> list[str]:
    clock = MovedClock()
    async with serving(folder, clock) as (broker, _):
        before_mib = memory_mib()
        lag, began_s = Lag(), time.perf_counter()
        await park(broker, count, spread_s)
        enter_rate = count / (time.perf_counter() - began_s)
        enter_lag = lag.stop()
        held_mib = memory_mib() - before_mib
        waiting = broker.later.timers.files.wheel.waiting
        assert waiting == count, waiting
    async with serving(folder, clock) as (broker, start_s):
        assert broker.later.timers.files.wheel.waiting == count
        before_mib = memory_mib()
        lag = Lag()
        clock.ahead_ms += (spread_s + AHEAD_S + 10) * 1000
        rate = await delivered(broker, count)
        deliver_lag = lag.stop()
        after_mib = memory_mib() - before_mib
    return [
        number(enter_rate), number(held_mib), *map(number, enter_lag), number(start_s),
        number(rate), number(after_mib), *map(number, deliver_lag),
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.timers", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the store is made; a temporary one else")
    args = parser.parse_args(argv)
    rows = []
    for name, spread_s in (("over two days", SPREAD_S), ("at one moment", 0)):
        folder = Path(tempfile.mkdtemp(prefix="kerolox-timers-", dir=args.folder))
        try:
            rows.append([name, *run(measure(args.messages, spread_s, folder))])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(rows[-1], flush=True)
    table = Table(
        f"{args.messages:,} messages that wait",
        [
            "due", "parked and entered/s", "memory for them, MiB", "loop lag p99, ms", "worst, ms",
            "start with them, s", "delivered/s when overdue", "memory for that, MiB",
            "loop lag p99, ms", "worst, ms",
        ],
        rows,
    )  # fmt: skip
    result = Result(
        "timers", "Timer", [" ".join((__doc__ or "").split())], machine.describe(),
        {"messages": f"{args.messages:,}, bodies of 100 bytes"}, [table],
    )  # fmt: skip
    result.show()
    result.save()


if __name__ == "__main__":
    main()
