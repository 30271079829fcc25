"""A leader that waits for its follower, end to end: two brokers, one name server."""

from __future__ import annotations

import time
from pathlib import Path

from kerolox import Message, Producer, SendStatus
from kerolox.testing.broker import running_broker

from .kit import until


async def test_a_follower_is_waited_for_while_it_is_there(tmp_path: Path) -> None:
    async with (
        running_broker(directory=tmp_path / "leader", role="SYNC_MASTER") as leader,
        Producer(leader.nameserver_address, group="g") as producer,
    ):
        log, replicas = leader.broker.store.log, leader.broker.store.replicas
        alone = await producer.send(Message("T", b"alone"))
        assert alone.status is SendStatus.SLAVE_NOT_AVAILABLE
        async with running_broker(
            directory=tmp_path / "follower", nameserver=leader.nameserver, role="SLAVE", broker_id=1
        ) as follower:
            copy = follower.broker.store.log
            await until(lambda: replicas.having(log.max_offset) == 2)
            for number in range(20):
                sent = await producer.send(Message("T", b"%d" % number))
                assert sent.status is SendStatus.OK
                assert copy.max_offset == log.max_offset
        # It has gone: the leader hears of that at once, and nobody waits for it.
        await until(lambda: not list(replicas))
        began_s = time.monotonic()
        left = await producer.send(Message("T", b"left"))
        assert left.status is SendStatus.SLAVE_NOT_AVAILABLE
        assert time.monotonic() - began_s < leader.broker.options.replica_timeout_ms / 1000
        written = (tmp_path / "leader/store/commitlog" / f"{0:020d}").read_bytes()
        copied = (tmp_path / "follower/store/commitlog" / f"{0:020d}").read_bytes()
        assert copied[: copy.max_offset] == written[: copy.max_offset]
