"""What a type checker says of programs that use the client: nothing of right ones, of others what is wrong.

A line of the wrong program that must be complained of ends with ``# error:`` and a part of the complaint.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kerolox

pytest.importorskip("mypy")

RIGHT = """
from datetime import timedelta
from kerolox import KeroloxError, Message, Producer, PushConsumer, Receipt, Received, blocking


class Counter:
    async def __call__(self, message: Received) -> None: ...


async def main(producer: Producer, consumer: PushConsumer, how: bool) -> None:
    receipts: list[Receipt] = await producer.send_many([Message("t", b"x")], order_key="k", timeout_s=1)
    mixed: list[Receipt | KeroloxError] = await producer.send_many([Message("t", "x")], return_errors=True)
    either = await producer.send_many([Message("t", "x")], return_errors=how)
    for result in mixed + either:
        print(result.retriable if isinstance(result, KeroloxError) else result.queue_offset)
    delayed = await producer.send(Message("t", "x", keys="one", tags="a", delay=timedelta(seconds=3)))
    await producer.recall("t", delayed.recall_handle)

    @consumer.on("t", tags="a || b")
    async def one(message: Received) -> None:
        print(message.text)

    @consumer.on("u")
    def plain(message: Received) -> None: ...

    @consumer.on("v", batch=32)
    async def many(messages: list[Received]) -> None: ...

    @consumer.on("w", sql="a > 1", batch=32)
    def plain_many(messages: list[Received]) -> None: ...

    seen: list[str] = []
    consumer.subscribe("x", lambda message: seen.append(message.text))
    consumer.subscribe("y", Counter())
    consumer.subscribe("z", lambda messages: seen.extend(each.text for each in messages), batch=10)
    await one(received := (await producer.request(Message("t", "x"))))
    plain(received)
    if consumer.refusal is not None:
        print(consumer.refusal.next_step)


def threads(producer: blocking.Producer, consumer: blocking.PushConsumer) -> None:
    first: Receipt = producer.send_many([Message("t", b"x")])[0]
    second: Receipt | KeroloxError = producer.send_many([Message("t", b"x")], return_errors=True)[0]
    print(first, second, consumer.refusal)

    @consumer.on("t")
    def one(message: Received) -> None: ...

    @consumer.on("t", batch=2)
    def many(messages: list[Received]) -> None: ...
"""

WRONG = """
from kerolox import Message, Producer, PushConsumer, Receipt, Received, blocking


async def main(producer: Producer, consumer: PushConsumer) -> None:
    some = [Message("t", b"x")]
    wanted: list[Receipt] = await producer.send_many(some, return_errors=True)  # error: KeroloxError
    (await producer.send_many(some, return_errors=True))[0].queue_offset  # error: KeroloxError
    await producer.send_many(some, order_key=5)  # error: order_key
    await producer.send_many(some, wrong=5)  # error: overload
    await producer.send(Message("t", 5))  # error: "int"; expected "bytes | str"
    await producer.send(Message("t", b"x", tags=None))  # error: "None"; expected "str"
    await producer.send(Message("t", b"x", keys=[1]))  # error: expected "str"
    await producer.send(Message("t", b"x", delay="5"))  # error: "delay"
    await producer.send(Message(b"t", b"x"))  # error: "bytes"; expected "str"
    await producer.send("t", b"x")  # error: Message
    print(wanted)

    @consumer.on("t")  # error: list[Received]
    async def expects_many(messages: list[Received]) -> None: ...

    @consumer.on("t", batch=32)  # error: Received
    async def expects_one(message: Received) -> None: ...

    @consumer.on("t")  # error: bool
    async def returns(message: Received) -> bool:
        return True

    @consumer.on("t")  # error: Callable[[], None]
    def expects_none() -> None: ...

    consumer.subscribe("t", lambda message: print(message.no_such))  # error: "Received" has no attribute
    consumer.subscribe("t", 5)  # error: overload


def threads(producer: blocking.Producer, consumer: blocking.PushConsumer) -> None:
    some = [Message("t", b"x")]
    wanted: list[Receipt] = producer.send_many(some, return_errors=True)  # error: KeroloxError
    print(wanted)

    @consumer.on("t", batch=32)  # error: Received
    def expects_one(message: Received) -> None: ...
"""


def test_programs_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.setenv("MYPYPATH", str(Path(kerolox.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)  # whose cache it is, and where no other settings are
    # In a process of its own: its objects would be collected for seconds in this one.
    options = ["--strict", "--config-file=", "--no-pretty", "right.py", "wrong.py"]
    done = subprocess.run([sys.executable, "-m", "mypy", *options], capture_output=True, text=True)
    assert not done.stderr
    out = done.stdout
    said: dict[tuple[str, int], str] = {}
    for line in out.splitlines():
        found = re.match(r"([^:]+):(\d+): (?:error|note): (.*)", line)
        if found is not None:
            place = (found[1], int(found[2]))
            said[place] = f"{said.get(place, '')} {found[3]}"
    assert {place: text for place, text in said.items() if place[0] != "wrong.py"} == {}
    expected = {
        ("wrong.py", number): part
        for number, line in enumerate(WRONG.splitlines(), 1)
        if (part := line.partition("# error: ")[2])
    }
    assert said.keys() == expected.keys(), out
    for place, part in expected.items():
        assert part in said[place], f"{place}: {said[place]}"
