"""``kerolox broker followers``: who copies how far, and if not, why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kerolox import Message, Producer
from kerolox.cli.main import app
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.controlled import running_controlled
from kerolox.testing.nameserver import running_nameserver
from tests.replication.kit import until


async def command(nameserver: str, *words: str) -> tuple[int, str, str]:
    def run() -> tuple[int, str, str]:
        result = CliRunner().invoke(app, words, env={"NAMESRV_ADDR": nameserver})
        return result.exit_code, result.stdout, result.stderr

    return await asyncio.to_thread(run)


async def followers(nameserver: str, *words: str) -> dict[str, Any]:
    code, out, errors = await command(nameserver, "broker", "followers", "--json", *words)
    assert code == 0, errors
    found: dict[str, Any] = json.loads(out)
    return found


def copied(leader: RunningBroker, *others: RunningBroker) -> bool:
    end = leader.broker.store.log.max_offset
    return all(one.acked == end for one in leader.broker.replication.leader.followers) and len(
        leader.broker.replication.leader.followers
    ) == len(others)


async def test_each_follower_is_told_by_its_own_address(tmp_path: Path) -> None:
    async with (
        running_nameserver(directory=tmp_path / "n") as nameserver,
        running_broker(directory=tmp_path / "a", nameserver=nameserver) as leader,
        running_broker(
            directory=tmp_path / "b", nameserver=nameserver, brokerRole="SLAVE", brokerId=1
        ) as first,
        running_broker(
            directory=tmp_path / "c", nameserver=nameserver, brokerRole="SLAVE", brokerId=2
        ) as second,
        Producer(nameserver.address, group="p") as producer,
    ):
        await producer.send(Message("T", b"x" * 1000))
        await until(lambda: copied(leader, first, second))
        end = leader.broker.store.log.max_offset
        found = await followers(nameserver.address)
        assert found["turnedAway"] == []
        rows = sorted(found["followers"], key=lambda row: row["id"])
        assert [(row["id"], row["follower"]) for row in rows] == [(1, first.address), (2, second.address)]
        for row in rows:
            assert row["connection"] != row["follower"]
            assert (row["broker"], row["leader"]) == ("broker-a", leader.address)
            assert (row["acked"], row["behindBytes"], row["behindSeconds"]) == (end, 0, 0.0)
            assert (row["inSync"], row["why"]) == (True, "")
        assert (await followers("127.0.0.1:1", "-b", leader.address))["followers"][0]["follower"] is None
        (own,) = (await followers("127.0.0.1:1", "-b", first.address))["followers"]
        assert (own["leader"], own["acked"], own["why"]) == (
            leader.address, end, "copying what the leader writes",
        )  # fmt: skip
        code, out, _ = await command(nameserver.address, "broker", "followers", "--broker", "broker-a")
        assert code == 0
        lines = out.splitlines()
        assert lines[0].split()[:4] == ["broker", "leader", "follower", "id"]
        assert lines[2].split()[:2] == ["broker-a", leader.address]

        # One that holds its reports back is behind: by bytes, and by the time since it had all.
        link = first.broker.replication.follower.link
        assert link is not None
        link._report = lambda offset: None  # type: ignore[method-assign]
        await producer.send(Message("T", b"y" * 1000))
        slow = next(
            row for row in leader.broker.replication.leader.followers if row.address == link.own_address
        )
        await until(lambda: slow.behind_s > 0.2)
        rows = {row["id"]: row for row in (await followers(nameserver.address))["followers"]}
        assert rows[1]["behindBytes"] == leader.broker.store.log.max_offset - end
        assert rows[1]["behindSeconds"] > 0.2
        assert rows[2]["behindSeconds"] == 0
        text = (await leader.broker.figures.metrics.metrics()).text
        assert "kerolox_follower_in_sync{" in text
        (line,) = [
            line for line in text.splitlines()
            if line.startswith("kerolox_follower_behind_seconds") and link.own_address in line
        ]  # fmt: skip
        assert float(line.split()[-1]) > 0.2


async def test_who_is_turned_away_is_told_with_the_reason(tmp_path: Path) -> None:
    async with (
        running_nameserver(directory=tmp_path / "n") as nameserver,
        running_broker(directory=tmp_path / "a", nameserver=nameserver) as leader,
    ):
        code, _, errors = await command(nameserver.address, "broker", "followers")
        assert code == 1
        assert "has no follower" in errors
        code, _, errors = await command(nameserver.address, "broker", "followers", "--broker", "broker-b")
        assert code == 1
        assert "Registered: broker-a" in errors
        host, _, port = leader.broker.endpoints.ha_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write((1 << 40).to_bytes(8, "big"))
        assert await reader.read() == b""
        writer.close()
        found = await followers(nameserver.address)
        assert found["followers"] == []
        (one,) = found["turnedAway"]
        assert (one["why"], one["count"]) == ("ahead", 1)
        assert str(1 << 40) in one["text"]
        async with running_broker(
            directory=tmp_path / "b", nameserver=nameserver, brokerRole="SLAVE", brokerId=1,
            haMasterAddress=f"{host}:1",
        ) as follower:  # fmt: skip
            link = follower.broker.replication.follower
            await until(lambda: "cannot connect" in link.text)
            (row,) = (await followers(nameserver.address, "--broker", "broker-a"))["followers"]
            assert (row["follower"], row["connection"], row["inSync"]) == (follower.address, None, False)
            assert "cannot connect" in row["why"]
            await leader.stop()
            await until(lambda: 0 not in nameserver.routes.groups["broker-a"].addresses)
            (row,) = (await followers(nameserver.address))["followers"]
            assert row["leader"] == leader.address  # as the follower heard of it
            assert row["why"].startswith("no leader is registered; ")


async def test_brokers_under_a_controller_are_shown_with_their_in_sync_set() -> None:
    async with running_controlled(2) as group:
        found = await followers(group.nameserver_address)
        first, second = found["controlled"]
        assert (first["id"], first["leaderId"], first["inSync"], first["epoch"]) == (1, 1, "1 2", 1)
        assert (second["id"], second["leaderId"], second["inSync"]) == (2, 1, None)
        (row,) = found["followers"]
        assert (row["id"], row["inSync"], row["why"]) == (2, True, "")
        code, out, _ = await command(group.nameserver_address, "broker", "followers")
        assert code == 0
        assert "under a controller" in out
