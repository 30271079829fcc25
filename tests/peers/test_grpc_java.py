"""RocketMQ 5's own Java client at the gRPC port, unchanged: with TLS, which is its default, and without."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from kerolox.protocol.bodies.groups import GroupConfig
from tests.broker.proxy.grpc_kit import grpc_broker

from .conftest import available
from .jars import CLIENT_OF_GRPC, Jars
from .java import find_java, grpc_driver_jar

ORDERED = "[" + ", ".join(f"f{number}" for number in range(10)) + "]"


@pytest.fixture(scope="module")
def client() -> Jars:
    return available(CLIENT_OF_GRPC)


async def told(jars: Jars, address: str, how: str, home: Path) -> dict[str, list[str]]:
    """Let the client's process tell its stories; return what happened, by name."""
    java = find_java()
    classpath = f"{grpc_driver_jar(java, jars)}:{jars.classpath}"
    process = await asyncio.create_subprocess_exec(
        java.path, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={home}",
        "-cp", classpath, "peers.grpc.Stories", address, how,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, error = await asyncio.wait_for(process.communicate(), 150)
    except TimeoutError:
        process.kill()
        raise
    found = defaultdict(list)
    for line in out.decode().splitlines():
        name, _, value = line.partition(" ")
        found[name].append(value)
    assert "end" in found, out.decode()[-3000:] + error.decode()[-3000:]
    return found


@pytest.mark.parametrize("how", ["tls", pytest.param("plaintext", marks=pytest.mark.full)])
async def test_stories_of_the_java_client(client: Jars, how: str, tmp_path: Path) -> None:
    options = {"transaction_timeout_ms": 1000, "transaction_check_ms": 500, "recall": True}
    async with grpc_broker(**options) as served:
        for topic in ("normal", "pushed"):
            await served.topic(topic)
        await served.topic("fifo", "FIFO")
        await served.topic("delay", "DELAY")
        await served.topic("deals", "TRANSACTION")
        served.broker.membership.groups.put(GroupConfig(group_name="ordered", consume_message_orderly=True))
        story = await told(client, served.broker.grpc_address, how, tmp_path)
    assert len(set(story["sent"])) == 5
    assert story["seen"] == [f"paid,[k0],{{color=blue}},{story['sent'][0]}"]
    assert "s3=2" in story["attempts"][0]
    assert story["pushed"] == ["{p0=1, p1=1, p2=2, p3=1, p4=1}"]
    assert story["ordered"] == [ORDERED]
    assert story["late"] == ["true,[late]"]
    assert story["transacted"] == ["[asked, kept][asked]"]
