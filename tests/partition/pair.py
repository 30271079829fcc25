"""A leader and its follower, those who send to them, and what can be done to them."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.topics import TopicConfig
from tests.peers.wire import request
from tests.rig import checker as promises
from tests.rig.history import History
from tests.rig.loads import Load
from tests.rig.logs import read_log, read_queue, records_of
from tests.rig.tables import WITH_USERS, Tables
from tests.rig.waiting import wait_until

from . import checker
from .history import Alone, PairHistory
from .hub import Hub
from .node import HA_PORT, Node
from .wires import Wires

log = logging.getLogger(__name__)

QUEUES = 4
LOG_FILE_BYTES = 1 << 20
QUEUE_FILE_BYTES = 20 * 1000
HEARTBEAT_MS = 200
SILENCE_MS = 1200  # after which each end takes the other for gone
REPLICA_TIMEOUT_MS = 800
GET_BROKER_CLUSTER_INFO = 106
UPDATE_BROKER_CONFIG = 25
UNREGISTER_BROKER = 104
STARTED_S = 30.0
HEALED_S = 60.0
ACKED = 5  # of each client's: then the pair works

MakeNodes = Callable[[Mapping[str, object]], Sequence[Node]]
MakeLoads = Callable[[str, History], Sequence[Load]]


class Violation(AssertionError):
    """A promise was broken."""


class Pair:
    """Two brokers of one name, one in each network. ``relayed``: the follower copies through the relay."""

    def __init__(
        self,
        folder: Path,
        number: int,
        wires: Wires,
        hub: Hub,
        chance: random.Random,
        make_nodes: MakeNodes,
        *,
        relayed: bool,
        makes_tables: bool = False,
    ) -> None:
        """``makes_tables``: topics, groups and users are made before each fault. Apache's brokers copy them
        late."""
        self.makes_tables = makes_tables
        self.folder = folder
        self.topic = f"orders-{number}"
        self.name = f"pair-{number}"
        self.wires = wires
        self.hub = hub
        self.chance = chance
        self.relayed = relayed
        self.history = PairHistory()
        self.tables = Tables()
        self.steps: list[str] = []  # what was done, for whoever has to find out
        self.loads: Sequence[Load] = ()
        self.divergences: list[str] = []  # by their names
        self.flush = chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH"))
        settings = {
            "brokerName": self.name,
            "brokerClusterName": "partition",
            "inSyncReplicas": 2,
            "slaveTimeout": REPLICA_TIMEOUT_MS,
            "haSendHeartbeatInterval": HEARTBEAT_MS,
            "haHousekeepingInterval": SILENCE_MS,
            "mappedFileSizeCommitLog": LOG_FILE_BYTES,
            "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
            "diskSpaceFreeEnough": 1 << 20,
            "autoCreateTopicEnable": "false",  # who begins to lead has its leader's topics
            "flushDiskType": self.flush,
            "registerNameServerPeriod": 10_000,
            "namesrvAddr": hub.nameserver,
            **(WITH_USERS if makes_tables else {}),
        }
        self.nodes = make_nodes(settings)
        self.leader, self.follower = self.nodes
        self._refused_mark = 0

    # --- life -------------------------------------------------------------------------------------------

    def start(self, make_loads: MakeLoads) -> None:
        self.step(f"start, {self.flush}, {'through the relay' if self.relayed else 'directly'}")
        self.lead()
        self.hub.run(self._make_topic())
        self.follow()
        self.loads = make_loads(self.topic, self.history)
        self.resume()
        self.wait_healed()

    async def _make_topic(self) -> None:
        config = TopicConfig(topic_name=self.topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        async with Dialer() as dialer:
            admin = AdminCalls(NameServers([self.hub.nameserver], dialer), dialer)
            await admin.put_topic(self.leader.client_address, config)

    def close(self) -> None:
        """End everybody; the files stay."""
        for load in self.loads:
            load.close()
        for node in self.nodes:
            node.kill()

    def step(self, text: str) -> None:
        self.steps.append(f"{time.time():.3f} {text}")
        log.info("%s", text)

    # --- roles ------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Start the leader, and wait until clients can find it."""
        self.leader.lead()
        self._led()

    def _led(self) -> None:
        """The relay leads to the leader, and clients can find it."""
        if self.relayed:
            host = self.leader.client_address.rpartition(":")[0]
            self.hub.call(lambda: setattr(self.hub.relay, "target", (host, HA_PORT)))
        shown = f'0:"{self.leader.client_address}"'

        def registered() -> bool:
            told = request(self.hub.nameserver, GET_BROKER_CLUSTER_INFO).body.decode()
            return shown in told.replace('"0":', "0:")

        wait_until(registered, lambda: f"{self.leader.home.name} registers as leader", STARTED_S)

    def follow(self) -> None:
        """Start the follower."""
        self.follower.follow(self.hub.relay.address if self.relayed else "")

    def swap(self) -> None:
        """The follower leads from now on. The old leader does not run, or does not know yet."""
        self.leader, self.follower = self.follower, self.leader
        self.step(f"{self.leader.home.name} is to lead")
        self.leader.end()
        self.lead()
        self.history.swapped_s = time.time()

    def promote(self) -> None:
        """The follower, which runs, is told to lead. The old leader does not run, or nobody can reach it."""
        old, new = self.leader, self.follower
        self.step(f"{new.home.name} is promoted")
        unregister = {
            "brokerName": self.name, "brokerAddr": old.client_address, "clusterName": "partition",
            "brokerId": "0",
        }  # fmt: skip
        said = ""

        def promoted() -> bool:
            nonlocal said
            request(self.hub.nameserver, UNREGISTER_BROKER, unregister)
            answer = request(
                new.client_address, UPDATE_BROKER_CONFIG, {"acceptLoss": "true"},
                b"brokerRole=SYNC_MASTER\nbrokerId=0\n", timeout=20.0,
            )  # fmt: skip
            said = answer.remark or ""
            return answer.code == 0

        wait_until(promoted, lambda: f"it leads: {said}", STARTED_S)
        self.leader, self.follower = new, old
        self._led()
        self.history.swapped_s = time.time()

    # --- load -------------------------------------------------------------------------------------------

    def resume(self) -> None:
        for load in self.loads:
            load.resume()

    def pause(self) -> None:
        for load in self.loads:
            load.pause()

    def wait_sent(self, more: int, for_s: float = HEALED_S) -> None:
        """Wait for so many more answers, of whatever kind, that say a message was stored."""
        before = self._stored()
        wait_until(lambda: self._stored() >= before + more, lambda: f"{more} messages are stored", for_s)

    def _stored(self) -> int:
        for load in self.loads:
            load.collect()
        return sum(one.stored for one in self.history.sends)

    @contextmanager
    def alone(self, why: str) -> Iterator[None]:
        """While this lasts nothing can be confirmed by the follower. Enter when it is so already, and leave
        before it ends."""
        began_s = time.time()
        self.step(why)
        yield
        self.history.alone.append(Alone(began_s, time.time(), why))

    # --- health -----------------------------------------------------------------------------------------

    def wait_healed(self) -> float:
        """Until every client's messages are acknowledged by both. How long it took."""
        since_s = time.time()

        def missing() -> list[str]:
            for load in self.loads:
                load.collect()
            return [one.client for one in self.loads if self.history.count(one.client, since_s) < ACKED]

        return wait_until(lambda: not missing(), lambda: f"{missing()} are acknowledged", HEALED_S)

    def wait_equal(self) -> int:
        """Until both logs end at the same place. Nobody sends; but what somebody gave up waiting for may come
        late, and the logs grow."""
        ends = (-1, -2)

        def equal() -> bool:
            nonlocal ends
            ends = (self.leader.log_end(), self.follower.log_end())
            return ends[0] == ends[1] >= 0

        wait_until(
            equal,
            lambda: (
                f"the leader ends at {ends[0]}, the follower at {ends[1]}: "
                f"{self.follower.told().get('followerState')}"
            ),
            HEALED_S,
        )
        return ends[0]

    def check(self) -> tuple[int, int]:
        """Nobody sends, and both have all. Raises Violation; else how many messages and bytes there are."""
        end = self.wait_equal()
        one, other = read_log(self.leader.store, end), read_log(self.follower.store, end)
        records = records_of(one)
        wrong = [
            *promises.not_equal(one, other),
            *checker.lost(self.history, records, self.topic),
            *promises.acknowledged_twice(self.history.sends),
            *checker.acknowledged_alone(self.history),
            *promises.invented(self.history.sends, records, self.topic),
            *promises.gaps(records, self.topic),
            *checker.refused_without_reason(self.follower.refusals(self._refused_mark)),
        ]
        if self.makes_tables:
            wrong += self.tables.missing(self.leader.client_address)
        self.judge(wrong)
        if self.makes_tables:
            follower, missing = self.follower.client_address, [""]

            def has_tables() -> bool:
                missing[:] = self.tables.missing(follower)
                return not missing

            wait_until(has_tables, lambda: f"the follower has all tables: {missing}", HEALED_S)
        self._refused_mark = self.follower.mark
        return len(records), len(one.data)

    def check_queues(self) -> None:
        """Both stopped. Their queues lead to the messages of their logs."""
        end = self.wait_equal()
        for node in self.nodes:
            node.end()
        wrong = []
        for node in self.nodes:
            records = [one for one in records_of(read_log(node.store, end)) if one.topic == self.topic]
            queues = {
                queue: read_queue(node.store, self.topic, queue, sum(one.queue == queue for one in records))
                for queue in range(QUEUES)
            }
            whose = "leader" if node is self.leader else "follower"
            wrong += promises.queues_not_equal(records, self.topic, queues, whose)
        self.judge(wrong)

    def judge(self, wrong: list[str]) -> None:
        if wrong:
            raise Violation("\n".join(wrong))

    # --- the old leader comes back ------------------------------------------------------------------------

    def wait_refused(self, mark: int) -> None:
        """Until the follower refuses its leader's log, which it has to call by its name."""
        wait_until(
            lambda: bool(self.follower.refusals(mark)),
            lambda: f"the follower refuses its leader: {self.follower.told().get('followerState')}",
            HEALED_S,
        )
        state = self.follower.refusals(mark)[-1]
        self.step(f"the follower says {state}")
        self.judge(checker.misnamed(self.leader.log(), self.follower.log(), state))
        self.divergences.append(state)

    def come_back(self) -> None:
        """The old leader follows. Nobody sends meanwhile, so what its log is to the leader's is sure: it has
        to say so by the right name. If that is a refusal, its log is mended, and it follows."""
        self.pause()
        follower = self.follower
        mark = follower.mark
        before = self.leader.log()
        self.follow()
        wait_until(
            lambda: follower.copies or bool(follower.refusals(mark)),
            lambda: f"the old leader finds out: {follower.told().get('followerState')}",
            HEALED_S,
        )
        state = "COPYING" if follower.copies else follower.refusals(mark)[-1]
        leaders, own = self.leader.log(), follower.log()
        actual = checker.relation(leaders, own)
        self.step(f"{actual.value} (at {promises.first_difference(leaders, own)}), and it says {state}")
        # What comes late makes the leader's log longer.
        self.judge(checker.misnamed(leaders, own, state) and checker.misnamed(before, own, state))
        if state != "COPYING":
            self.divergences.append(state)
            follower.kill()
            if self.chance.random() < 0.3:
                self.step("its store is moved away")
                follower.wipe()
            else:
                follower.resync(self.leader.client_address)
                self.step("its log was taken back to the leader's: kerolox store resync")
            self._refused_mark = follower.mark  # from here on there is nothing to refuse
            self.follow()
        else:
            self._refused_mark = mark
        self.resume()
