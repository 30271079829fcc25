"""How ranges are pulled: the requests, and how much is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox import Queue
from kerolox.client.calls.pulls import Pace, PullFrames
from kerolox.client.options import ClientOptions
from kerolox.client.sockets import socket_cluster
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command, decode_command
from kerolox.protocol.frame import FrameSplitter
from kerolox.protocol.headers.pull import PullRequest


class Wire:
    """Takes down what would be sent."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self._opaque = 6
        self._splitter = FrameSplitter()

    def next_opaque(self) -> int:
        self._opaque += 1
        return self._opaque

    def send_bytes(self, data: bytes) -> None:
        self.commands += [decode_command(*frame) for frame in self._splitter.feed(data)]

    def send(self, code: int, header: PullRequest) -> int:
        from kerolox.protocol.command import request

        opaque = self.next_opaque()
        self.send_bytes(request(code, header, opaque=opaque).encode())
        return opaque


@pytest.mark.parametrize("key", ["", "me"])
def test_requests_made_from_a_template_are_requests(key: str) -> None:
    options = ClientOptions("127.0.0.1:9876", access_key=key, secret_key=key)
    queue = Queue('odd%"topic"7', "broker-ä", 1313131313 % 1000)
    requests = PullFrames(options, queue, "g", "a || b", "TAG")
    wire = Wire()
    wanted = [(0, 1), (2**62, 32), (17, 1024)]
    assert socket_cluster._send(wire, requests, wanted) == [7, 8, 9]  # type: ignore[arg-type]
    for number, ((offset, count), command) in enumerate(zip(wanted, wire.commands, strict=True)):
        header = command.header(PullRequest)
        assert (command.code, command.opaque) == (RequestCode.PULL_MESSAGE, 7 + number)
        assert (header.queue_offset, header.max_msg_nums) == (offset, count)
        assert (header.topic, header.broker_name, header.queue_id) == queue
        assert (header.consumer_group, header.subscription, header.expression_type) == ("g", "a || b", "TAG")


def asked(pace: Pace, gives: int, pulls: int) -> list[int]:
    found = []
    for _ in range(pulls):
        found.append(pace.ask)
        pace.saw(pace.ask, min(pace.ask, gives))
    return found


def test_a_limit_on_the_count_is_found_out_and_kept() -> None:
    assert asked(Pace(1024), 32, 6) == [1024, 32, 37, 32, 32, 32]
    assert asked(Pace(16), 32, 3) == [16, 16, 16]
    long = asked(Pace(1024), 32, 1000)
    assert long.count(32) > 990


def test_it_asks_for_more_when_messages_get_smaller() -> None:
    pace = Pace(1024)
    for given_ in (20, 17, 19):
        asked(pace, given_, 3)
    assert asked(pace, 1024, 200)[-1] == 1024


@given(st.integers(1, 2000), st.lists(st.integers(1, 2000), max_size=30))
@settings(max_examples=100)
def test_it_always_asks_for_something(count: int, gives: list[int]) -> None:
    pace = Pace(count)
    for number in gives:
        pace.saw(pace.ask, min(pace.ask, number))
        assert 1 <= pace.ask <= count
