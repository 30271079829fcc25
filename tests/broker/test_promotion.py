"""A follower that is promoted by hand: nothing acknowledged is lost, and nobody leads beside another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox import Message, Producer
from kerolox.broker.fellows.fellows import AnotherLeads
from kerolox.broker.options import BrokerRole
from kerolox.clock import Clock
from kerolox.nameserver.server import NameServer
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.bodies.stats import HaStatus
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.admin import UpdateBrokerConfigRequest
from kerolox.protocol.headers.registration import UnregisterBrokerRequest
from kerolox.replication.leaders_end import LeaderNote
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver

from ..replication.kit import raw
from .talk import until

LEAD = b"brokerRole=ASYNC_MASTER\nbrokerId=0\n"


class Group:
    """A leader and followers of one name, with their files of settings."""

    def __init__(self, path: Path, nameserver: NameServer, stack: AsyncExitStack) -> None:
        self.path = path
        self.nameserver = nameserver
        self.dialer = Dialer()
        self._stack = stack

    async def broker(self, id: int, **options: Any) -> RunningBroker:
        if id:
            options |= {"brokerRole": "SLAVE", "brokerId": id}
        file = self.path / f"{id}.conf"
        file.write_text("# kept\n")
        made = running_broker(
            directory=self.path / str(id), nameserver=self.nameserver, brokerConfigPath=str(file), **options
        )
        return await self._stack.enter_async_context(made)

    async def change(
        self, broker: RunningBroker, body: bytes = LEAD, *, accept_loss: bool = False
    ) -> Command:
        header = UpdateBrokerConfigRequest(accept_loss=accept_loss or None)
        return await self.dialer.call(
            broker.address, RequestCode.UPDATE_BROKER_CONFIG, header, body, timeout_s=30
        )

    async def refused(self, broker: RunningBroker, **how: Any) -> str:
        answer = await self.change(broker, **how)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert not broker.broker.leadership.leads
        assert "brokerRole" not in self.settings(1)
        return answer.remark or ""

    def settings(self, id: int) -> dict[str, str]:
        return read_properties((self.path / f"{id}.conf").read_text())

    @property
    def registered(self) -> dict[int, str]:
        found = self.nameserver.routes.groups.get("broker-a")
        return {} if found is None else found.addresses


@asynccontextmanager
async def group(path: Path) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(running_nameserver(directory=path / "n"))
        made = Group(path, nameserver, stack)
        stack.push_async_callback(made.dialer.close)
        yield made


async def send(nameserver: str, count: int) -> dict[tuple[int, int], bytes]:
    """What was acknowledged, by queue and offset."""
    found: dict[tuple[int, int], bytes] = {}
    async with Producer(nameserver, group="p") as producer:
        for number in range(count):
            body = b"%d" % number
            receipt = await producer.send(Message("T", body))
            found[receipt.queue.queue_id, receipt.queue_offset] = body
    return found


async def has_all(follower: RunningBroker, leader: RunningBroker) -> None:
    """It has the log, the tables, and knows how far its leader is."""
    end = leader.broker.store.log.max_offset
    await until(lambda: follower.broker.store.log.max_offset == end)
    copy = follower.broker.copies.copy
    for _ in range(2):
        before = copy.passes
        copy.copy_now()
        await until(lambda before=before: copy.passes > before)
    await until(lambda: follower.broker.replication.follower.leaders_end.note.end == end)


async def gone(g: Group, leader: RunningBroker) -> None:
    await leader.stop()
    await until(lambda: 0 not in g.registered)


async def test_a_promoted_follower_has_all_that_was_acknowledged_and_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    async with group(tmp_path) as g:
        leader, follower = await g.broker(0, brokerRole="SYNC_MASTER"), await g.broker(1)
        await until(lambda: leader.broker.store.replicas.in_sync(0) == 2)
        sent = await send(g.nameserver.address, 30)
        await has_all(follower, leader)
        history = raw(leader.broker.store)
        await gone(g, leader)
        assert (await g.change(follower)).code == 0
        assert g.registered == {0: follower.address}
        assert follower.broker.leadership.leads
        # A restart keeps the role.
        assert g.settings(1)["brokerRole"] == "ASYNC_MASTER"
        assert g.settings(1)["brokerId"] == "0"
        more = await send(g.nameserver.address, 30)
        assert not sent.keys() & more.keys()  # offsets go on where they were
        store = follower.broker.store
        assert raw(store)[: len(history)] == history
        for queue_id in range(8):
            offsets = sorted(offset for queue, offset in sent | more if queue == queue_id)
            assert offsets == list(range(len(offsets)))
        status = await g.dialer.call(follower.address, RequestCode.GET_BROKER_HA_STATUS)
        assert HaStatus.decode(status.body).master
        assert follower.broker.replication.follower.leaders_end.note == LeaderNote()
        # The old one comes back as it was: it does not lead, and says what to do.
        with pytest.raises(AnotherLeads) as refusal:
            await leader.start()
        text = str(refusal.value)
        assert f"{follower.address} leads under this name" in text
        assert f"kerolox store resync {tmp_path / '0' / 'store'} --leader {follower.address}" in text
        assert g.registered == {0: follower.address}
        # It has nothing of its own, so it can follow as it is.
        leader.broker.options.role, leader.broker.options.broker_id = BrokerRole.SLAVE, 1
        await leader.start()
        await has_all(leader, follower)
        assert raw(leader.broker.store) == raw(store)
        assert g.registered == {0: follower.address, 1: leader.address}


async def test_it_is_refused_while_a_leader_lives(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        leader, follower = await g.broker(0), await g.broker(1)
        await has_all(follower, leader)
        text = await g.refused(follower, accept_loss=True)
        assert f"{leader.address} leads and answers" in text
        assert "Stop it first" in text
        # The name server has lost sight of it, and it is there all the same.
        await leader.broker.nameservers.registrations.close()
        await until(lambda: 0 not in g.registered)
        text = await g.refused(follower, accept_loss=True)
        assert f"{leader.address}, which leads, answers though no name server lists it" in text
        # Registered, but silent: it may come back any moment.
        routes = g.nameserver.routes.groups["broker-a"]
        await leader.stop()
        g.nameserver.routes._set_addresses(routes, routes.addresses | {0: leader.address})
        text = await g.refused(follower, accept_loss=True)
        assert f"{leader.address} is registered as the leader, and does not answer" in text
        assert "120 s" in text


async def test_it_is_refused_when_messages_would_be_lost(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        leader, follower = await g.broker(0), await g.broker(1)
        await send(g.nameserver.address, 10)
        await has_all(follower, leader)
        end = follower.broker.store.log.max_offset
        # Nothing comes to the follower any more, and it hears that there is more.
        link = follower.broker.replication.follower.link
        assert link is not None
        assert link._transport is not None
        link._transport.pause_reading()
        await send(g.nameserver.address, 10)
        lacking = leader.broker.store.log.max_offset - end
        assert lacking > 0
        await until(lambda: follower.broker.replication.follower.lacking == lacking)
        await leader.broker.nameservers.registrations.close()
        serving = leader.broker.replication.leader
        assert serving._look is not None
        serving._look.cancel()
        serving._look = None  # it serves nobody at its end either
        await gone(g, leader)
        assert follower.broker.store.log.max_offset == end
        text = await g.refused(follower)
        assert (
            f"messages would be lost: {lacking} bytes: the log of the leader {leader.address} ended at"
            in text
        )
        assert "--accept-loss" in text
        # Also after a restart: it is kept.
        await follower.start()
        text = await g.refused(follower)
        assert f"{lacking} bytes" in text
        assert (await g.change(follower, accept_loss=True)).code == 0
        assert g.registered == {0: follower.address}
        await send(g.nameserver.address, 1)
        # The old leader has what the others never got.
        with pytest.raises(AnotherLeads):
            await leader.start()


async def test_the_follower_that_has_most_is_promoted(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        leader, behind, ahead = await g.broker(0), await g.broker(1), await g.broker(2)
        await send(g.nameserver.address, 10)
        await has_all(behind, leader)
        await has_all(ahead, leader)
        await behind.stop()
        await send(g.nameserver.address, 10)
        await has_all(ahead, leader)
        end, more = behind.broker.store.log.max_offset, ahead.broker.store.log.max_offset
        await gone(g, leader)
        await behind.start()
        await until(lambda: 1 in g.registered)
        text = await g.refused(behind)
        assert f"{more - end} bytes: the log of follower 2 at {ahead.address} ends at {more}" in text
        assert "promote that one" in text
        assert (await g.change(ahead)).code == 0
        # The other one follows it by itself.
        await until(lambda: behind.broker.store.log.max_offset == more, timeout_s=30)
        assert raw(behind.broker.store) == raw(ahead.broker.store)
        assert g.registered == {0: ahead.address, 1: behind.address}


async def test_one_that_was_refused_by_its_leader_is_not_promoted(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        leader, follower = await g.broker(0), await g.broker(1)
        await send(g.nameserver.address, 5)
        await has_all(follower, leader)
        await gone(g, leader)
        assert (await g.change(follower)).code == 0
        await send(g.nameserver.address, 5)
        assert (await g.change(follower, b"brokerRole=SLAVE\nbrokerId=1\n")).code == 0
        assert g.registered == {1: follower.address}
        await leader.start()
        await send(g.nameserver.address, 9)  # another history
        link = follower.broker.replication.follower
        await until(lambda: "differ" in link.text, timeout_s=30)
        await gone(g, leader)
        (g.path / "1.conf").write_text("# kept\n")
        text = await g.refused(follower)
        assert "the place where the logs part" in text
        assert "the two logs differ at" in text


async def test_what_cannot_be_kept_or_known_is_refused(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        alone = await g.broker(1)
        text = await g.refused(alone)
        assert "never heard how far its leader was" in text
        answer = await g.change(alone, b"brokerId=0\n")
        assert "1 or more with brokerRole=SLAVE" in (answer.remark or "")
        assert (await g.change(alone, b"brokerId=7\n")).code == 0
        await until(lambda: g.registered == {7: alone.address})
        async with running_broker(
            directory=tmp_path / "x", nameserver=g.nameserver, brokerRole="SLAVE", brokerId=9
        ) as unkept:
            answer = await g.change(unkept, accept_loss=True)
            assert "started without a configuration file" in (answer.remark or "")
            assert not unkept.broker.leadership.leads
        leader = await g.broker(0)
        # Between the two ways to lead it changes at once.
        assert not leader.broker.store.acks.wait_for_replicas
        assert (await g.change(leader, b"brokerRole=SYNC_MASTER\n")).code == 0
        assert leader.broker.store.acks.wait_for_replicas
        assert (await g.change(leader, b"brokerRole=nonsense\n")).code != 0
        await g.nameserver.close()
        text = (await g.change(alone, accept_loss=True)).remark or ""
        assert "so it is not known whether another broker leads" in text


async def test_a_leader_that_was_cut_off_gives_way_to_the_one_that_was_promoted(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        old, new = await g.broker(0), await g.broker(1)
        await send(g.nameserver.address, 5)
        await has_all(new, old)
        # The name server forgets the old one, and the new one cannot reach it.
        await g.dialer.call(
            g.nameserver.address,
            RequestCode.UNREGISTER_BROKER,
            UnregisterBrokerRequest(
                broker_name="broker-a", broker_addr=old.address, cluster_name="DefaultCluster", broker_id=0
            ),
        )
        follower = new.broker.replication.follower
        await follower.stop()
        await follower.leaders_end.keep(LeaderNote("127.0.0.1:1", follower.leaders_end.note.end))
        assert (await g.change(new)).code == 0
        assert old.broker.leadership.leads
        old.broker.nameservers.registrations.register_all()  # the network is whole again
        await until(lambda: not old.broker.leadership.leads)
        assert g.registered == {0: new.address}
        line = old.broker.nameservers.registrations.lines[0]
        await until(lambda: f"{new.address} leads under this name" in line.last_error)
        assert "kerolox store resync" in line.last_error
        async with Producer(g.nameserver.address, group="p") as producer:
            await producer.send(Message("T", b"taken by the new one"))
        # The new one stays when it registers again.
        new.broker.nameservers.registrations.register_all()
        await new.broker.nameservers.registrations.settled()
        assert g.registered == {0: new.address}
        # It follows now, whatever its settings say: it can be promoted as any other follower, or not.
        assert (await shown_role(g, old)) == "SLAVE"
        assert f"{new.address} leads and answers" in ((await g.change(old)).remark or "")
        # With a follower's number the old one registers as such, and copies.
        assert (await g.change(old, b"brokerRole=SLAVE\nbrokerId=1\n")).code == 0
        await until(lambda: g.registered == {0: new.address, 1: old.address}, timeout_s=20)
        await until(lambda: raw(old.broker.store) == raw(new.broker.store), timeout_s=20)


async def shown_role(g: Group, broker: RunningBroker) -> str:
    answer = await g.dialer.call(broker.address, RequestCode.GET_BROKER_CONFIG)
    return read_properties(answer.body.decode())["brokerRole"]


async def test_a_leader_that_gave_way_leads_again_when_the_other_one_is_lost(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        old, new = await g.broker(0), await g.broker(1)
        await send(g.nameserver.address, 5)
        await has_all(new, old)
        header = UnregisterBrokerRequest(
            broker_name="broker-a", broker_addr=old.address, cluster_name="DefaultCluster", broker_id=0
        )
        await g.dialer.call(g.nameserver.address, RequestCode.UNREGISTER_BROKER, header)
        follower = new.broker.replication.follower
        await follower.stop()
        await follower.leaders_end.keep(LeaderNote("127.0.0.1:1", follower.leaders_end.note.end))
        assert (await g.change(new)).code == 0
        old.broker.nameservers.registrations.register_all()  # the network is whole again
        await until(lambda: not old.broker.leadership.leads)
        await gone(g, new)
        text = (await g.change(old)).remark or ""
        assert "messages would be lost" in text
        assert (await shown_role(g, old)) == "SLAVE"
        assert (await g.change(old, accept_loss=True)).code == 0
        assert old.broker.leadership.leads
        assert (await shown_role(g, old)) == "ASYNC_MASTER"
        await until(lambda: g.registered == {0: old.address})
        await send(g.nameserver.address, 5)


class AnHourBehind(Clock):
    """The clock of a host whose time is wrong."""

    def wall_ms(self) -> int:
        return super().wall_ms() - 3_600_000


async def test_clocks_do_not_decide_which_of_two_leaders_gives_way(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        old, new = await g.broker(0), await g.broker(1, clock=AnHourBehind())
        await send(g.nameserver.address, 5)
        await has_all(new, old)
        header = UnregisterBrokerRequest(
            broker_name="broker-a", broker_addr=old.address, cluster_name="DefaultCluster", broker_id=0
        )
        await g.dialer.call(g.nameserver.address, RequestCode.UNREGISTER_BROKER, header)
        await new.broker.replication.follower.stop()
        end = new.broker.replication.follower.leaders_end.note.end
        await new.broker.replication.follower.leaders_end.keep(LeaderNote("127.0.0.1:1", end))
        assert (await g.change(new)).code == 0
        acknowledged = await send(g.nameserver.address, 200)
        assert old.broker.leadership.leads
        new.broker.nameservers.registrations.register_all()
        old.broker.nameservers.registrations.register_all()  # the network is whole again
        await until(lambda: not old.broker.leadership.leads)
        assert new.broker.leadership.leads
        assert (await g.change(old, b"brokerRole=SLAVE\nbrokerId=1\n")).code == 0
        await until(lambda: raw(old.broker.store) == raw(new.broker.store), timeout_s=20)
        store = old.broker.store
        await store.flusher.flush_all()
        ends = {id: queue.max_offset for id, queue in store.queues.by_topic["T"].items()}
        assert all(offset < ends[queue_id] for queue_id, offset in acknowledged)
        # What the old one copied says who was promoted last: promoted itself, it comes after the other.
        assert new.broker.tables.promotions.number == 1
        await until(lambda: old.broker.tables.promotions.number == 1)


async def test_a_promoted_broker_is_never_told_to_put_its_log_aside(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        old, new = await g.broker(0), await g.broker(1)
        await send(g.nameserver.address, 5)
        await has_all(new, old)
        await gone(g, old)
        assert (await g.change(new)).code == 0
        await send(g.nameserver.address, 200)
        await gone(g, new)
        await old.start()  # as it was: nobody is there to say otherwise
        await send(g.nameserver.address, 1)
        new.broker.options.role, new.broker.options.broker_id = BrokerRole.ASYNC_MASTER, 0
        with pytest.raises(AnotherLeads) as refusal:
            await new.start()
        text = str(refusal.value)
        assert "promotion 1 here, 0 there" in text
        assert "Do not discard its log" in text
        assert "resync" not in text
        new.broker.options.role, new.broker.options.broker_id = BrokerRole.SLAVE, 1
        await new.start()
        follower = new.broker.replication.follower
        await until(lambda: "promoted after its leader (promotion 1 here, 0 there)" in follower.text)
        assert "resync" not in follower.text
        assert f"Stop {old.address}" in follower.text


async def test_a_follower_that_is_started_as_the_leader_counts_as_promoted(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        old, new = await g.broker(0), await g.broker(1)
        await send(g.nameserver.address, 5)
        await has_all(new, old)
        await gone(g, old)
        await new.stop()
        new.broker.options.role, new.broker.options.broker_id = BrokerRole.ASYNC_MASTER, 0
        await new.start()
        assert new.broker.tables.promotions.number == 1
        await new.stop()
        await new.start()
        assert new.broker.tables.promotions.number == 1  # it led before


async def test_a_follower_that_never_heard_of_its_leader_but_by_the_log_counts_as_promoted(
    tmp_path: Path,
) -> None:
    """It was given haMasterAddress, and no name server has told it where its leader answers."""
    async with group(tmp_path) as g:
        old = await g.broker(0)
        at = old.broker.endpoints.ha_address
        new = await g.broker(1, haMasterAddress=at, namesrvAddr="")
        await send(g.nameserver.address, 5)
        await until(lambda: new.broker.store.log.max_offset == old.broker.store.log.max_offset)
        assert new.broker.replication.follower.leaders_end.note.address == ""
        await gone(g, old)
        await new.kill()
        new.broker.options.role, new.broker.options.broker_id = BrokerRole.ASYNC_MASTER, 0
        await new.start()
        assert new.broker.tables.promotions.number == 1
        assert new.broker.tables.topics.find("T") is not None


async def test_a_leader_whose_name_is_taken_does_not_start(tmp_path: Path) -> None:
    async with group(tmp_path) as g:
        first = await g.broker(0)
        with pytest.raises(AnotherLeads, match="give one of them another brokerName"):
            async with running_broker(directory=tmp_path / "x", nameserver=g.nameserver):
                pass
        assert g.registered == {0: first.address}
        await first.start()  # the same one again is no other
        assert g.registered == {0: first.address}
