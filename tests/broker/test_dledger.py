"""Brokers of a DLedger group: they elect one, it takes messages, another one does when it is killed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kerolox import Message, Producer
from kerolox.broker.options import BrokerOptions
from kerolox.broker.role.settings import check_role, role_asked, role_at_start
from kerolox.errors import KeroloxError, OptionError, Refused
from kerolox.nameserver.listings import cluster_info
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.replication import HaInfo
from kerolox.testing.broker import RunningBroker

from .dledger_kit import GROUP, LedgerBrokers, ledger_brokers, until

log = logging.getLogger(__name__)


async def send(brokers: LedgerBrokers, count: int, first: int = 0) -> None:
    """Each once more until it is acknowledged."""
    async with Producer(brokers.nameserver.address, group="producers") as producer:
        for number in range(first, first + count):
            while True:
                try:
                    await producer.send(Message("T", b"message %d" % number))
                    break
                except KeroloxError as error:
                    log.info("sent_again number=%d error=%r", number, str(error))
                    await asyncio.sleep(0.1)


def bodies(running: RunningBroker) -> set[bytes]:
    store = running.broker.store
    found: set[bytes] = set()
    for queue in store.consume_queues:
        if queue.topic == "T":
            for offset in range(queue.min_offset, queue.max_offset):
                entry = queue.entry(offset)
                assert entry is not None
                record = store.log.record_at(entry[0])
                found.add(record[record.index(b"message ") :].split(b"\x01")[0])
    return found


async def test_a_claim_to_lead_is_refused(tmp_path: Path) -> None:
    """The members elect the leader. A claim made a follower forget it, so that it copied no tables."""
    async with ledger_brokers(tmp_path) as brokers, Dialer() as dialer:
        leader = await brokers.leader()
        follower = brokers.followers()[0]
        leadership = follower.broker.leadership
        await until(lambda: leadership.leader is not None)
        claim = HaInfo(master_ha_address="127.0.0.1:1", master_address=leader.address, master_flush_offset=0)
        answer = await dialer.call(follower.address, RequestCode.EXCHANGE_BROKER_HA_INFO, claim)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the members of its DLedger group elect the leader" in (answer.remark or "")
        assert leadership.leader is not None
        assert (leadership.role.epoch, leadership.role.returning) == (
            leader.broker.leadership.role.epoch, None,
        )  # fmt: skip


async def test_one_leads_and_another_one_when_it_is_killed(tmp_path: Path) -> None:
    async with ledger_brokers(tmp_path, commit_log_file_bytes=1 << 13) as brokers:  # many files
        leader = await brokers.leader()
        await send(brokers, 50)
        await brokers.alike()
        told = cluster_info(brokers.nameserver.routes).broker_addr_table[GROUP].broker_addrs
        assert told[0] == leader.address
        await until(
            lambda: (
                set(cluster_info(brokers.nameserver.routes).broker_addr_table[GROUP].broker_addrs.values())
                == {one.address for one in brokers.brokers}
            )
        )
        await leader.kill()
        second = await brokers.leader()
        assert second is not leader
        await send(brokers, 50, first=50)
        await leader.start()
        await brokers.alike()
        await second.stop()  # not killed: another one leads before it goes
        assert len(brokers.leaders()) == 1 or any(
            one.broker.dledger is not None and one.broker.dledger.group is not None
            and one.broker.dledger.group.member.is_leader
            for one in brokers.brokers if one.is_running
        )  # fmt: skip
        await brokers.leader()
        await second.start()
        await brokers.alike()
        assert [bodies(one) for one in brokers.brokers] == [{b"message %d" % n for n in range(100)}] * 3


def ledger_options(**changed: object) -> BrokerOptions:
    given: dict[str, object] = {
        "ledger": True,
        "ledger_self_id": "n1",
        "ledger_peers": "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913",
        "broker_name": GROUP,
        "broker_id": -1,
        **changed,
    }
    return BrokerOptions(**given)  # type: ignore[arg-type]


def test_settings_are_checked_at_the_start() -> None:
    options = ledger_options(ledger_preferred="n0;n2", ledger_batch_push=True)
    check_role(options)
    settings = options.ledger_settings
    assert settings is not None
    assert (settings.group, settings.self_id, settings.follower_id) == (GROUP, "n1", 2)
    assert (settings.preferred, settings.batch_push) == (("n0", "n2"), True)
    assert BrokerOptions().ledger_settings is None
    for changed, key in (
        ({"ledger_self_id": "n7"}, "dLegerSelfId"),
        ({"ledger_self_id": ""}, "dLegerSelfId"),
        ({"ledger_self_id": "node", "ledger_peers": "node-127.0.0.1:1"}, "dLegerSelfId"),
        ({"ledger_peers": ""}, "dLegerPeers"),
        ({"ledger_peers": "n0"}, "dLegerPeers"),
        ({"ledger_preferred": "n9"}, "preferredLeaderId"),
        ({"controlled": True}, "enableControllerMode"),
        ({"acting": True}, "enableSlaveActingMaster"),
    ):
        with pytest.raises(OptionError, match=key):
            check_role(ledger_options(**changed))
    with pytest.raises(Refused, match="elect the leader"):
        role_asked(options, {"brokerRole": "SYNC_MASTER"}, role_at_start(options))
