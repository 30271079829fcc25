"""A DLedger group of one: a broker that leads by its own vote, and keeps its messages in entries."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest

from kerolox import Message, Producer, ProducerOptions, PullConsumer, PullOptions
from kerolox.broker.options import BrokerOptions
from kerolox.broker.role.settings import check_role, role_asked, role_at_start
from kerolox.client.errors import MessageRefused
from kerolox.errors import OptionError, Refused
from kerolox.net.dialer import Dialer
from kerolox.options import load
from kerolox.protocol.bodies.dledger import ANSWERED, LedgerCode, MemberRequest, MetadataAnswer
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.codes import RequestCode
from kerolox.store.log.ledger_log import LedgerLog
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import verify
from kerolox.testing.broker import RunningBroker, running_broker
from tests.rig.ports import free_ports

GROUPS = itertools.count()
GROUP = {"ledger": True, "ledger_group": "broker-a", "ledger_self_id": "n0"}


def alone() -> dict[str, object]:
    return GROUP | {"ledger_peers": f"n0-127.0.0.1:{free_ports(1)[0]}"}


async def send(running: RunningBroker, bodies: list[bytes]) -> None:
    async with Producer(running.nameserver_address, group="p") as producer:
        for body in bodies:
            await producer.send(Message("T", body, tags="a", keys=[body.decode()]))


async def received(running: RunningBroker, count: int) -> set[bytes]:
    """What a new group gets, from the beginning on."""
    found: set[bytes] = set()
    async with PullConsumer(
        running.nameserver_address, group=f"G{next(GROUPS)}", options=PullOptions(start="first"), topics=["T"]
    ) as consumer:
        while len(found) < count:
            batch = await consumer.poll(10)
            assert batch is not None, f"{len(found)} of {count}"
            found |= {message.body for message in batch}
    return found


# --- options ------------------------------------------------------------------------------------------


def options(**more: object) -> BrokerOptions:
    values = GROUP | {"ledger_peers": "n0-127.0.0.1:40911"} | more
    return BrokerOptions(**values)  # type: ignore[arg-type]


def test_what_the_options_say() -> None:
    assert BrokerOptions().ledger_settings is None
    text = """
        enableDLegerCommitLog=true
        dLegerGroup=RaftNode00
        dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
        dLegerSelfId=n1
        preferredLeaderId=n0;n1
        enableBatchPush=true
        sendMessageThreadPoolNums=16
    """
    found = load(BrokerOptions, file_text=text).options.ledger_settings
    assert found is not None
    assert (found.group, found.self_id, found.follower_id, found.others) == (
        "RaftNode00",
        "n1",
        2,
        ("n0", "n2"),
    )
    assert (found.preferred, found.batch_push) == (("n0", "n1"), True)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"ledger_self_id": "n1"}, "dLegerSelfId"),
        ({"ledger_self_id": "", "ledger_peers": "-127.0.0.1:1"}, "dLegerPeers"),
        ({"ledger_self_id": "nn0", "ledger_peers": "nn0-127.0.0.1:1"}, "dLegerSelfId"),
        ({"ledger_self_id": "0", "ledger_peers": "0-127.0.0.1:1"}, "dLegerSelfId"),
        ({"ledger_self_id": "n-0", "ledger_peers": "n-0-127.0.0.1:1"}, "dLegerSelfId"),
        ({"ledger_peers": ""}, "dLegerPeers"),
        ({"ledger_peers": "n0"}, "dLegerPeers"),
        ({"ledger_peers": "n0-127.0.0.1"}, "dLegerPeers"),
        ({"ledger_peers": "n0-127.0.0.1:1;n0-127.0.0.1:2"}, "dLegerPeers"),
        ({"ledger_preferred": "n7"}, "preferredLeaderId"),
        ({"controlled": True, "controllers": "a:1"}, "enableControllerMode"),
        ({"acting": True}, "enableSlaveActingMaster"),
        ({"record_crc": True}, "enabledAppendPropCRC"),
        ({"light_queues": True, "fill_light_queues": True}, "enableMultiDispatch"),
        ({"ledger_paths": "a,store/commitlog"}, "storePathDLedgerCommitLog"),
        ({"ledger_paths": "a", "commit_log_paths": "b,./a"}, "storePathDLedgerCommitLog"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object], key: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_role(options(**wrong))
    assert caught.value.key == key


def test_the_group_says_who_leads() -> None:
    with pytest.raises(Refused, match="the DLedger group elect the leader"):
        role_asked(options(), {"brokerRole": "SLAVE", "brokerId": "1"}, role_at_start(options()))


# --- a broker -----------------------------------------------------------------------------------------


async def test_a_leader_shows_the_role_it_was_elected_to(tmp_path: Path) -> None:
    settings = alone() | {"ledger_peers": "n0-127.0.0.1:0"}  # any free port will do
    async with running_broker(directory=tmp_path, **settings) as running, Dialer() as dialer:
        await send(running, [b"1"])
        answer = await dialer.call(running.address, RequestCode.GET_BROKER_CONFIG)
        shown = read_properties(answer.body)
        assert (shown["brokerRole"], shown["brokerId"]) == ("SYNC_MASTER", "0")


async def test_a_group_of_one_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_broker(directory=tmp_path, **alone()) as running:
        broker = running.broker
        assert (broker.leadership.leads, broker.leadership.id) == (True, 0)
        assert isinstance(broker.store.log, LedgerLog)
        assert "group of one has no second copy" in caplog.text
        await send(running, [b"%d" % i for i in range(50)])
        await received(running, 50)
        member = broker.dledger
        assert member is not None
        told = member.runtime_info()
        assert (told["ledgerRole"], told["ledgerCommittedIndex"]) == ("leader", 49)
        async with Dialer() as dialer:
            asked = MemberRequest(group="broker-a", remote_id="n0").encode()
            address = member.settings.peers["n0"]
            answer = await dialer.call(address, LedgerCode.METADATA, None, asked, timeout_s=3)
        assert answer.code == ANSWERED
        assert MetadataAnswer.decode(answer.body).leader_id == "n0"
        await running.stop()
        assert (tmp_path / "store/dledger-n0/currterm").read_bytes().count(b"voteLeader=n0") == 1
        report = verify(find_layout(tmp_path / "store", broker.options))
        assert report.clean, report.findings
        await running.start()
        assert await received(running, 50) == {b"%d" % i for i in range(50)}
        assert running.broker.store.ledger is not None
        first = running.broker.store.ledger.end_term
        await send(running, [b"more"])
        assert running.broker.store.ledger.end_term >= first
        await running.kill()
        await running.start()
        await received(running, 51)
        await running.stop()


async def test_a_plain_broker_becomes_a_group_of_one(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running:
        await send(running, [b"%d" % i for i in range(20)])
        await running.stop()
    async with running_broker(directory=tmp_path, **alone()) as running:
        await send(running, [b"%d" % i for i in range(20, 40)])
        assert await received(running, 40) == {b"%d" % i for i in range(40)}
        await running.stop()
    with pytest.raises(Exception, match="enableDLegerCommitLog is not set"):
        async with running_broker(directory=tmp_path):
            pass


async def test_too_large_for_the_group(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, body_bytes_max=8 << 20, **alone()) as running:
        options = ProducerOptions(message_bytes_max=8 << 20, compression="")
        async with Producer(running.nameserver_address, group="p", options=options) as producer:
            with pytest.raises(MessageRefused, match="the limit in a DLedger group"):
                await producer.send(Message("T", bytes(5 << 20)))
            await producer.send(Message("T", b"small"))
