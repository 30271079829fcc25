"""Attacks on the port for followers, from which the whole log is copied. Refusals come late: many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kerolox.protocol.ha_epochs import Hello, pack_epoch_report, pack_hello
from kerolox.protocol.ha_proof import CHALLENGE_BYTES, OPENING, FollowersProof, ProofRefused
from kerolox.testing.access import ADMIN, INNER

from .world import PASSWORD, SECRET

HEARD_S = 2.0
NAME = "followers' port"

Exchange = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def says(data: bytes) -> Exchange:
    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return exchange


def proves(name: str, secret: str) -> Exchange:
    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proof = FollowersProof(name, secret)
        writer.write(proof.begin())
        writer.write(proof.feed(await reader.readexactly(len(OPENING) + CHALLENGE_BYTES)))
        writer.write(bytes(8))  # and goes on as if it had been let in

    return exchange


async def _recorded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What a follower has proved to somebody else."""
    proof = FollowersProof(INNER.access_key, INNER.secret_key)
    proof.begin()
    recorded = proof.feed(OPENING + bytes(CHALLENGE_BYTES))
    writer.write(OPENING + recorded + bytes(8))


ATTACKS: dict[str, Exchange] = {
    "RocketMQ's report": says(bytes(8)),
    "reports of a follower that is far on": says((1 << 40).to_bytes(8)),
    "an epoch hello": says(pack_hello(Hello(2))),
    "an epoch report": says(pack_epoch_report(0)),
    "an unknown user": proves("stranger", "x"),
    "a wrong password": proves(ADMIN.access_key, "guessed"),
    "a user who may not do everything": proves("mallory", PASSWORD),
    "a disabled user": proves("disabled", PASSWORD),
    "a recorded proof": _recorded,
    "half a proof": says(OPENING),
    "garbage": says(b"\xff" * 64),
}


async def attack(address: str, name: str) -> str:
    """What is wrong; empty when nothing is."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    heard = b""
    try:
        await ATTACKS[name](reader, writer)
        async with asyncio.timeout(HEARD_S):
            while data := await reader.read(1 << 16):
                heard += data
    except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, ProofRefused):
        pass
    finally:
        writer.close()
    if SECRET in heard or len(heard) > len(OPENING) + CHALLENGE_BYTES + 1:
        return f"{NAME}: {name}: {len(heard)} bytes were sent"
    return ""


async def attack_all(address: str, times: int) -> tuple[int, list[str]]:
    """How many attempts, and what was wrong with them."""
    names = [name for name in ATTACKS for _ in range(times)]
    found = await asyncio.gather(*(attack(address, name) for name in names))
    return len(names), [text for text in found if text]
