"""Members of a group join, leave and die while messages flow; each message is consumed, in order if asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from ..conftest import Factory
from ..driver import JavaDriver
from .client import Client, Push, Record, body, missing, out_of_order, together, wait_until
from .cluster import Cluster

Unique = Callable[[str], str]

QUEUES = 8


class Group:
    """The members of one group, and all that they received."""

    def __init__(self, name: str, topic: str, *, orderly: bool) -> None:
        self.name, self.topic, self.orderly = name, topic, orderly
        self.members: list[Push] = []
        self.doomed: tuple[JavaDriver, Push] | None = None
        self.records: list[Record] = []

    def join(self, client: Client, *, doomed: bool = False) -> Push:
        """A doomed member tells of each message before it says that it has it."""
        member = client.push(
            self.name, self.topic, orderly=self.orderly, body=True, events=doomed, record=not doomed
        )
        if doomed:
            self.doomed = client.driver, member
        else:
            self.members.append(member)
        return member

    def leave(self, member: Push) -> None:
        self.members.remove(member)
        member.stop_keeping(self.records)

    def kill_doomed(self) -> None:
        """kill -9 of its process; all that it told of until then counts as received."""
        assert self.doomed is not None
        driver, member = self.doomed
        self.doomed = None
        unanswered = driver.submit("push.waitCount", handle=member.handle, count=10**9, timeoutMs=10**6)
        assert driver.pid is not None
        os.kill(driver.pid, signal.SIGKILL)
        assert unanswered.exception(20) is not None  # now its pipe is read to the end
        driver.kill()
        for event in driver.events("message"):
            self.records.append({**event["message"], "receivedAt": event["receivedAt"]})

    def collect(self) -> list[Record]:
        for member in self.members:
            self.records += member.drain()
        return self.records


def test_members_join_leave_and_die(cluster: Cluster, client: Client, java: Factory, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), QUEUES)
    doomed = Client(java.driver(), cluster.nameserver, cluster.kind)
    load = client.load(topic, lanes=QUEUES, producers=2, paceMs=2)
    groups = [
        Group(unique("concurrent"), topic, orderly=False), Group(unique("orderly"), topic, orderly=True)
    ]  # fmt: skip

    def story(group: Group) -> None:
        first = group.join(client)
        first.wait(100)
        # The one that will be killed has a part of the queues; one that leaves in order as well.
        if not group.orderly:
            group.join(doomed, doomed=True)
            wait_until(lambda: len(doomed.driver.events("message")) > 20, "the doomed member gets messages")
        second = group.join(client)
        second.wait(20)
        third = group.join(client)
        third.wait(20)
        group.leave(second)
        first.wait(first.count() + 20, distinct=False)

    together(*(lambda group=group: story(group) for group in groups))
    groups[0].kill_doomed()
    load.more(400)
    sent = load.end()
    assert sent["statuses"] == {"SEND_OK": sent["total"]}
    assert sent["errors"] == {}
    for group in groups:
        wait_until(
            lambda group=group: not missing(group.collect(), sent["acked"]),
            f"{group.name} gets all that was acknowledged",
        )
    assert out_of_order(groups[1].collect()) == []


@pytest.mark.long
def test_an_orderly_member_dies(cluster: Cluster, client: Client, java: Factory, unique: Unique) -> None:
    """Its locks are kept for a minute, in case it comes back."""
    topic = cluster.create_topic(client.driver, unique("topic"), QUEUES)
    doomed = Client(java.driver(), cluster.nameserver, cluster.kind)
    group = Group(unique("orderly"), topic, orderly=True)
    load = client.load(topic, lanes=QUEUES, producers=2, paceMs=20)
    group.join(client).wait(50)
    group.join(doomed, doomed=True)
    wait_until(lambda: len(doomed.driver.events("message")) > 20, "the doomed member gets messages")
    for _ in range(2):
        group.join(client)
    load.more(100)
    group.kill_doomed()
    load.more(400)
    sent = load.end()
    wait_until(
        lambda: not missing(group.collect(), sent["acked"]), "the living take over the dead one's queues", 120
    )
    assert out_of_order(group.collect()) == []


def test_broadcasting_reaches_every_member(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic")), unique("group")
    options = {"messageModel": "BROADCASTING"}
    members = [client.push(group, topic, options=options, body=True) for _ in range(3)]
    client.producer(unique("pid")).send_many(topic, 60, threads=2)
    for member in members:
        assert sorted(int(body(record)) for record in member.take(60)) == list(range(60))
    # Nobody's progress is the group's: the broker holds none.
    admin = client.admin()
    connections = admin.method("examineConsumerConnectionInfo", group)
    assert connections["messageModel"] == "BROADCASTING"
    assert len(connections["connectionSet"]) == 3
