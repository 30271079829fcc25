"""Sending over plain sockets, against real brokers in another thread."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import trustme

from kerolox.client.calls.retries import QUEUES
from kerolox.client.calls.routes import Route
from kerolox.client.errors import InvalidMessage, TopicNotFound
from kerolox.client.messages import Queue, Received
from kerolox.client.options import ClientOptions
from kerolox.client.sockets import socket_cluster
from kerolox.client.sockets.lines import Parcel, Sending, SendLine
from kerolox.client.sockets.sending import NotAllSent, SocketSender
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import Closed, ConnectionLost
from kerolox.net.tls import ClientTls
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies.routes import BrokerData, QueueData, TopicRoute
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.frame import BINARY
from kerolox.testing.threads import BrokerThread, broker_in_thread


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with broker_in_thread() as running:
        yield running


def single(topic: str, body: str) -> Parcel:
    return Parcel(topic, body.encode(), f"UNIQ_KEY\x01{body}\x02", body, SYSTEM_CLOCK.wall_ms())


def batch(topic: str, bodies: Iterable[str]) -> Parcel:
    items = [(0, body.encode(), f"UNIQ_KEY\x01{body[:20]}\x02".encode()) for body in bodies]
    return Parcel(
        topic,
        encode_batch(items),
        "WAIT\x01true\x02",
        "",
        SYSTEM_CLOCK.wall_ms(),
        code=RequestCode.SEND_BATCH_MESSAGE,
        count=len(items),
    )


def stored(cluster: SocketCluster, topic: str) -> list[Received]:
    found: list[Received] = []
    for queue in cluster.route(topic, fresh=True).readable:
        found += cluster.read(queue, 0, cluster.max_offset(queue), group="look")
    return found


def test_requests_overtake_no_answer_and_all_are_stored(broker: BrokerThread) -> None:
    broker.create_topic("many")
    with SocketCluster(broker.nameserver_address) as cluster, SocketSender(cluster, "g") as sender:
        for number in range(60):
            sender.send(single("many", f"single {number}"))
            sender.send(batch("many", [f"batch {number} {place}" for place in range(30)]))
        sender.finish()
        assert (sender.stored, sender.requests, sender.repeated) == (60 * 31, 120, 0)
        messages = stored(cluster, "many")
    assert len({message.text for message in messages}) == len(messages) == 60 * 31
    assert {message.queue_id for message in messages} == {0, 1, 2, 3}


def test_a_body_in_pieces_arrives_as_one(broker: BrokerThread) -> None:
    """More of it than a socket takes at once, and cut where no message ends."""
    broker.create_topic("pieces")
    with SocketCluster(broker.nameserver_address) as cluster, SocketSender(cluster, "g") as sender:
        wanted = [f"{place:02} " + "x" * 20_000 for place in range(100)]
        for first in range(0, 100, 50):
            parcel = batch("pieces", wanted[first : first + 50])
            whole = memoryview(parcel.body)
            cuts = [0, 1, 333_333, 333_334, len(whole)]
            parcel.pieces = tuple(whole[low:high] for low, high in pairwise(cuts))
            parcel.body = b""
            sender.send(parcel)
        sender.finish()
        assert (sender.stored, sender.requests) == (100, 2)
        assert sender.stored_bytes == 2 * len(whole)
        assert sorted(each.text for each in stored(cluster, "pieces")) == sorted(wanted)


def test_a_given_queue_keeps_the_order(broker: BrokerThread) -> None:
    broker.create_topic("ordered")
    with SocketCluster(broker.nameserver_address) as cluster, SocketSender(cluster, "g") as sender:
        first, second, *_ = sender.queues("ordered")
        for number in range(100):
            sender.send(batch("ordered", [f"{number:03} a", f"{number:03} b"]), first)
            sender.send(single("ordered", f"{number:03}"), second)
        sender.finish()
        for queue, count in ((first, 200), (second, 100)):
            bodies = [each.text for each in cluster.read(queue, 0, cluster.max_offset(queue), group="look")]
            assert bodies == sorted(bodies)
            assert len(bodies) == count
        with pytest.raises(InvalidMessage, match="is not a writable queue of topic 'ordered'"):
            sender.send(single("ordered", "x"), Queue("ordered", first.broker, 9))


def test_a_topic_is_made_by_its_first_message(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_cluster, "QUEUES", QUEUES._replace(unknown_topic_s=0.01))
    with SocketCluster(broker.nameserver_address) as cluster, SocketSender(cluster, "g") as sender:
        assert sender.is_assumed("made-on-the-way")
        sender.send(batch("made-on-the-way", ["a", "b"]))
        sender.finish()
        assert {message.text for message in stored(cluster, "made-on-the-way")} == {"a", "b"}
        with SocketSender(cluster, "g", template_topic="") as strict, pytest.raises(TopicNotFound):
            strict.send(single("never-made", "x"))


def test_a_topic_made_meanwhile_with_fewer_queues_than_assumed(broker: BrokerThread) -> None:
    with SocketCluster(broker.nameserver_address) as cluster, SocketSender(cluster, "g") as sender:
        assert len(sender.queues("made-elsewhere")) > 1
        assert sender.is_assumed("made-elsewhere")
        broker.create_topic("made-elsewhere", queues=1)
        for number in range(8):
            sender.send(batch("made-elsewhere", [f"{number} a", f"{number} b"]))
        sender.finish()
        assert len(sender.queues("made-elsewhere")) == 1
        assert len({message.text for message in stored(cluster, "made-elsewhere")}) == 16


def test_a_dead_broker_is_gone_around_and_its_own_queues_are_waited_for() -> None:
    with broker_in_thread(2) as two:
        two.create_topic("shared")
        options = ClientOptions(two.nameserver_address, request_timeout_s=5.0, connect_timeout_s=1.0)
        with SocketCluster(options) as cluster, SocketSender(cluster, "g") as sender:
            queues = sender.queues("shared")
            names = sorted({queue.broker for queue in queues})
            assert len(names) == 2
            for number in range(20):
                sender.send(single("shared", f"before {number}"))
            sender.finish()

            (gone,) = [name for name in names if two.address in _addresses(cluster, "shared", name)]
            two.stop(0)
            for number in range(40):
                sender.send(batch("shared", [f"during {number} {place}" for place in range(5)]))
            sender.finish()

            own = next(queue for queue in queues if queue.broker == gone)
            starter = threading.Timer(0.3, two.start)
            starter.start()
            sender.send(single("shared", "to its own queue"), own)
            sender.finish()
            starter.join()

            found = Counter(message.text for message in stored(cluster, "shared"))
            wanted = {f"before {number}" for number in range(20)} | {"to its own queue"}
            wanted |= {f"during {number} {place}" for number in range(40) for place in range(5)}
            assert set(found) == wanted


def _addresses(cluster: SocketCluster, topic: str, name: str) -> list[str]:
    return list(cluster.route(topic).brokers.get(name, {}).values())


def lose_answers(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The next answers are lost: the connection breaks when they have come."""
    left = [count]
    whole = SendLine.pull

    def pull(self: SendLine) -> Iterable[tuple[Sending, Command]]:
        for found in whole(self):
            if left[0]:
                left[0] -= 1
                self.waiting[-1] = found[0]
                raise ConnectionLost(self.address, "cut in the test")
            yield found

    monkeypatch.setattr(SendLine, "pull", pull)


def test_a_lost_answer_means_a_second_copy(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create_topic("twice", queues=1)
    with SocketCluster(broker.nameserver_address) as cluster, SocketSender(cluster, "g") as sender:
        lose_answers(monkeypatch, 1)
        sender.send(batch("twice", ["a", "b"]))
        sender.finish()
        assert (sender.stored, sender.repeated) == (2, 1)
        assert [message.text for message in stored(cluster, "twice")] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("there", ["all", "part", "none"])
def test_messages_found_in_the_queue_are_not_sent_again(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    topic = f"unanswered-{there}"
    broker.create_topic(topic, queues=1)
    asked: list[tuple[int, int]] = []

    def missing_of(parcel: Parcel, queue: Queue) -> Parcel | None:
        asked.append((parcel.count, queue.queue_id))
        return {"all": None, "part": batch(topic, ["b"]), "none": parcel}[there]

    with SocketCluster(broker.nameserver_address) as cluster:
        with SocketSender(cluster, "g", find_missing=missing_of) as sender:
            lose_answers(monkeypatch, 1)
            sender.send(batch(topic, ["a", "b"]))
            sender.finish()
            assert asked == [(2, 0)]
            assert sender.stored == 2
        more = {"all": [], "part": ["b"], "none": ["a", "b"]}[there]
        assert [message.text for message in stored(cluster, topic)] == ["a", "b", *more]


def test_what_nobody_takes_is_told(broker: BrokerThread) -> None:
    broker.create_topic("refusing", queues=1)
    with SocketCluster(broker.nameserver_address) as cluster, SocketSender(cluster, "g") as sender:
        sender.send(batch("refusing", ["good", "as well"]))
        broken = batch("refusing", ["x", "y", "z"])
        broken.body = broken.body[:-3]
        sender.send(broken)
        with pytest.raises(NotAllSent, match="3 messages in 1 requests to 'refusing' were not sent") as told:
            sender.finish()
        assert (told.value.count, told.value.may_be_stored, told.value.stored) == (3, 0, 2)
        sender.send(single("refusing", "goes on"))
        sender.finish()
        # What it stored for those before is not told again.
        sender.send(single("refusing", "good"))
        broken = batch("refusing", ["x"])
        broken.body = broken.body[:-3]
        sender.send(broken)
        with pytest.raises(NotAllSent, match="1 were stored before"):
            sender.finish()


def test_no_broker_in_time(broker: BrokerThread) -> None:
    with broker_in_thread() as lonely:
        lonely.create_topic("gone", queues=1)
        options = ClientOptions(lonely.nameserver_address, request_timeout_s=0.3)
        with SocketCluster(options) as cluster, SocketSender(cluster, "g", give_up_s=0.5) as sender:
            sender.queues("gone")
            lonely.stop()
            sender.send(batch("gone", "abcde"))
            with pytest.raises(NotAllSent, match="5 messages in 1 requests to 'gone' were not sent"):
                sender.finish()


def send_all(sender: SocketSender, topic: str) -> None:
    sender.send(batch(topic, "abcde"))
    sender.finish()


def test_a_caller_ends_the_retries() -> None:
    """Nothing is sent after the caller is no longer wanted, though the broker returns."""
    attempts: list[float] = []

    def check() -> None:
        attempts.append(time.monotonic())
        if len(attempts) == 5:
            raise Closed("no longer wanted")

    with broker_in_thread() as lonely:
        lonely.create_topic("gone", queues=1)
        options = ClientOptions(lonely.nameserver_address, request_timeout_s=0.3)
        with (
            SocketCluster(options) as cluster,
            SocketSender(cluster, "g", give_up_s=60, retries=100, check=check) as sender,
        ):
            sender.queues("gone")
            lonely.stop()
            with pytest.raises(Closed, match="no longer wanted"):
                send_all(sender, "gone")
            assert sender.stored == 0


def test_a_peer_that_stops_reading_blocks_nobody_for_ever() -> None:
    """It takes a few bytes, never answers; the sender neither hangs in a write nor forgets the time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        options = ClientOptions("nobody:1", request_timeout_s=0.3, connect_timeout_s=0.3)
        with (
            SocketCluster(options, tries=1) as cluster,
            SocketSender(cluster, "g", give_up_s=0.6, retries=0) as sender,
        ):
            queues = QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)
            there = BrokerData(cluster="c", broker_name="b", broker_addrs={0: address})
            route = Route("stuck", TopicRoute(queue_datas=(queues,), broker_datas=(there,)))
            sender._targets._publish(route)
            sender._targets._asked_s["stuck"] = time.monotonic()
            for _ in range(3):
                sender.send(batch("stuck", ["x" * 1_000_000, "y" * 1_000_000, "z" * 1_000_000]))
            with pytest.raises(NotAllSent) as told:
                sender.finish()
            assert told.value.count == 9
            assert 3 <= told.value.may_be_stored <= 9


def send_many(sender: SocketSender, topic: str) -> None:
    for number in range(40):
        sender.send(batch(topic, [f"{number} {place} " + "x" * 9_000 for place in range(20)]))
    sender.finish()
    assert sender.stored == 800


@pytest.mark.parametrize("how", ["signed", "binary"])
def test_other_ways_to_speak(broker: BrokerThread, how: str) -> None:
    broker.create_topic(f"spoken-{how}")
    options = {
        "signed": ClientOptions(broker.nameserver_address, access_key="me", secret_key="12345678"),
        "binary": ClientOptions(broker.nameserver_address, encoding=BINARY),
    }[how]
    with SocketCluster(options) as cluster, SocketSender(cluster, "g") as sender:
        send_many(sender, f"spoken-{how}")
        assert len({message.text for message in stored(cluster, f"spoken-{how}")}) == 800


def test_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    files = {"tls_certificate": str(tmp_path / "chain.pem"), "tls_key": str(tmp_path / "key.pem")}
    with broker_in_thread(**files) as secured:
        secured.create_topic("secret")
        with SocketCluster(secured.nameserver_address) as cluster, SocketSender(cluster, "g") as sender:
            sender.queues("secret")  # the name server of this test speaks no TLS
            tls = ClientTls(ca=str(tmp_path / "ca.pem"), check_host=True)
            cluster.options = dataclasses.replace(cluster.options, tls=tls)
            send_many(sender, "secret")
