"""``kerolox timer`` against a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.send import SendRequestV2
from tests.broker.talk import send_fields
from tests.cli.serving import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


def test_nothing_waits(cluster: Cluster) -> None:
    (found,) = cluster.json("timer", "pending")
    assert (found["broker"], found["waiting"], found["notEntered"], found["topics"]) == ("broker-a", 0, 0, {})
    assert set(found["dueWithin"].values()) == {0}


def test_what_waits_is_shown(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "later")

    async def send() -> None:
        async with Dialer() as dialer:
            for delay in ("30", "30", "7200", "7200"):
                header = SendRequestV2(**send_fields("later", {"TIMER_DELAY_SEC": delay}))
                answer = await dialer.call(cluster.running.address, RequestCode.SEND_MESSAGE_V2, header, b"x")
                assert answer.code == 0

    asyncio.run(send())
    (found,) = cluster.json("timer", "pending", "--broker", "broker-a")
    assert found["waiting"] + found["notEntered"] == 4
    if not found["notEntered"]:
        assert found["dueWithin"]["60"] == found["dueWithin"]["14400"] == 2
        assert found["topics"] == {"later": 4}
        lines = cluster.ok("timer", "pending").splitlines()
        assert [words for line in lines if (words := line.split())[0] == "broker-a"][1:] == [
            ["broker-a", "5", "s", "1", "min", "2"],
            ["broker-a", "1", "h", "4", "h", "2"],
            ["broker-a", "later", "4"],
        ]


def test_no_such_broker(cluster: Cluster) -> None:
    assert "Registered: broker-a" in cluster.error("timer", "pending", "--broker", "b9")
