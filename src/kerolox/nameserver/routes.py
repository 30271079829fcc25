"""The brokers that serve each topic. Decisions only: no sockets, files or clock.

There are four tables, with RocketMQ's meaning: a cluster has broker names; a broker name is a group of
brokers with ids, of which 0 is the master; a topic has queues at broker names; a broker, identified by
cluster and address, is alive until it expires or its connection closes. A registration removes no topics
(unless an option says so), because a broker's table may be incremental.

The encoded route of a topic is cached (:mod:`~kerolox.nameserver.encoded_routes`) and dropped when one of its
parts changes. So every change goes through a method here, and the values in the tables are frozen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kerolox.nameserver.brokers import (
    MASTER_ID,
    Alive,
    BrokerKey,
    BrokerRegistration,
    Group,
    MinIdNotice,
    Registered,
    min_id_notice,
    why_second_process,
    with_acting_master,
)
from kerolox.nameserver.changes import SLICE, ChangeSteps, at_once
from kerolox.nameserver.encoded_routes import EncodedRoutes
from kerolox.nameserver.options import NamesrvOptions
from kerolox.protocol.bodies.queue_mapping import QueueMapping
from kerolox.protocol.bodies.routes import QueueData, TopicRoute
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.flags import PERM_READ, PERM_WRITE
from kerolox.protocol.limits import TOPIC_QUEUES_MAX
from kerolox.protocol.reserved import MEMBER_TOPIC_PREFIX

log = logging.getLogger(__name__)

# Limits of the tables. Real clusters stay far below.
TOPICS_OF_BROKER_MAX = 200_000
TOPICS_MAX = 1_000_000
BROKERS_MAX = 10_000
FILTER_SERVERS_MAX = 100  # per broker
NAME_LENGTH_MAX = 255


class Routes:
    """The tables, with all queries and changes."""

    def __init__(
        self, options: NamesrvOptions, order_of: Callable[[str], str | None] = lambda topic: None
    ) -> None:
        self.options = options
        self.encoded = EncodedRoutes(self.route)
        self._order_of = order_of  # topic → its order configuration
        self.clusters: dict[str, set[str]] = {}
        self.groups: dict[str, Group] = {}
        self.topics: dict[str, dict[str, QueueData]] = {}  # topic → broker name → queues
        # of static topics: topic → broker name → mapping
        self.mappings: dict[str, dict[str, QueueMapping]] = {}
        self.alive: dict[BrokerKey, Alive] = {}
        self.filter_servers: dict[BrokerKey, tuple[str, ...]] = {}
        self._of_connection: dict[Any, set[BrokerKey]] = {}

    # --- registration -----------------------------------------------------------------------

    def register(self, told: BrokerRegistration, now_s: float) -> Registered:
        """Register a broker or update its registration."""
        return at_once(self.registering(told, now_s))

    def registering(self, told: BrokerRegistration, now_s: float) -> ChangeSteps[Registered]:
        """Register a broker in slices, by RocketMQ's rules in RocketMQ's order."""
        too_much = self._too_much(told)
        if too_much is not None:
            return Registered(refused=too_much)
        group = self.groups.get(told.name)
        addresses = {} if group is None else group.addresses
        # An address has one id: a slave that has become master loses its slave id.
        others = {
            id: address for id, address in addresses.items() if address != told.address or id == told.id
        }

        known = others.get(told.id)
        if known is not None and known != told.address:
            rival = self.alive.get((told.cluster, known))
            if rival is not None and rival.version.state_version > told.version.state_version:
                assert group is not None
                self._set_addresses(group, others)
                self._forget_alive(told.key)
                return Registered(
                    ignored=f"{known} is {told.name} {told.id} with state version "
                    f"{rival.version.state_version}, newer than {told.version.state_version}"
                )
            why = None if rival is None else why_second_process(told, known, rival, now_s)
            if why is not None:
                return Registered(refused=why)
        if known is None and len(told.topics) == 1:
            # An incremental update that arrived before the first full registration: if it were accepted,
            # clients would see a broker with a single topic.
            return Registered(refused="register broker failed")

        before = self.alive.get(told.key)
        if before is not None and before.name != told.name:
            yield from self._forgetting_all([told.key])  # the same process with a new name
        if group is None:
            group = self.groups[told.name] = Group(told.cluster, told.name)
        self.clusters.setdefault(told.cluster, set()).add(told.name)
        is_new_id = known is None
        lowest_changed = bool(addresses) and told.id < min(addresses)
        if known is not None and known != told.address:
            self._forget_alive((told.cluster, known))
        acting_master = bool(told.acting_master)
        if (group.acting_master, group.zone) != (acting_master, told.zone):
            group.acting_master, group.zone = acting_master, told.zone
            self._drop_encoded(group)
        self._set_addresses(group, others | {told.id: told.address})

        is_prime_slave = (
            told.acting_master is not None and told.id != MASTER_ID and told.id == group.lowest_id
        )
        if told.id == MASTER_ID or is_prime_slave:
            read_only = is_prime_slave and group.acting_master
            yield from self._taking_topics(group, told, is_new_id, read_only=read_only)

        is_new = self._set_alive(told, now_s)
        self._set_filter_servers(told)
        return self._answer(group, told, is_new, lowest_changed)

    def _too_much(self, told: BrokerRegistration) -> str | None:
        """Return the reason to reject a registration that exceeds a limit of the tables; None if it fits."""
        for what, text in (("cluster", told.cluster), ("name", told.name), ("address", told.address)):
            if len(text) > NAME_LENGTH_MAX:
                return (
                    f"the broker's {what} has {len(text)} characters, the limit is "
                    f"{NAME_LENGTH_MAX} (NAME_LENGTH_MAX)"
                )
        group = self.groups.get(told.name)
        count = len(told.topics)
        if group is not None and len(group.topics) + count > TOPICS_OF_BROKER_MAX:
            count = len(group.topics.union(told.topics))
        if max(count, len(told.mappings)) > TOPICS_OF_BROKER_MAX:
            return (
                f"{count} topics of broker {told.name}, the limit is "
                f"{TOPICS_OF_BROKER_MAX} (TOPICS_OF_BROKER_MAX)"
            )
        if len(self.topics) + count > TOPICS_MAX:
            new = sum(topic not in self.topics for topic in told.topics)
            if len(self.topics) + new > TOPICS_MAX:
                return f"{len(self.topics)} topics and {new} new ones, the limit is {TOPICS_MAX} (TOPICS_MAX)"
        if told.key not in self.alive and len(self.alive) >= BROKERS_MAX:
            return f"{len(self.alive)} brokers are registered, the limit is {BROKERS_MAX} (BROKERS_MAX)"
        if len(told.filter_servers or ()) > FILTER_SERVERS_MAX:
            return f"more filter servers than the limit of {FILTER_SERVERS_MAX} (FILTER_SERVERS_MAX)"
        return None

    def _set_addresses(self, group: Group, addresses: dict[int, str]) -> None:
        if group.addresses != addresses:
            group.addresses = addresses
            self._drop_encoded(group)

    def _taking_topics(
        self, group: Group, told: BrokerRegistration, is_new_id: bool, *, read_only: bool
    ) -> ChangeSteps[None]:
        if self.options.delete_topic_with_broker_registration and not told.mappings:
            yield from self._removing(group.topics - set(told.topics), group)
        before = self.alive.get(told.key)
        changed = is_new_id or before is None or before.version != told.version
        for number, (key, config) in enumerate(told.topics.items(), start=1):
            topic = config.topic_name or key
            if len(topic) > NAME_LENGTH_MAX:
                log.warning(
                    "topic_not_taken topic=%r... broker=%r reason='%d characters, the limit is %d'",
                    topic[:NAME_LENGTH_MAX], group.name, len(topic), NAME_LENGTH_MAX,
                )  # fmt: skip
                continue
            queues = max(config.read_queue_nums, config.write_queue_nums)
            if queues > TOPIC_QUEUES_MAX:  # clients would reject the whole route
                log.warning(
                    "topic_not_taken topic=%r broker=%r reason='%d queues, the limit is %d'",
                    topic, group.name, queues, TOPIC_QUEUES_MAX,
                )  # fmt: skip
                continue
            if number % SLICE == 0:
                yield
            if changed or topic not in group.topics:
                perm = config.perm & ~PERM_WRITE if read_only else config.perm
                self._set_queues(
                    topic,
                    group,
                    QueueData(
                        broker_name=group.name,
                        read_queue_nums=config.read_queue_nums,
                        write_queue_nums=config.write_queue_nums,
                        perm=perm,
                        topic_sys_flag=config.topic_sys_flag,
                    ),
                )
        if changed:
            for number, (topic, mapping) in enumerate(told.mappings.items(), start=1):
                # Stored by broker name, like the queues of the topic, so that both are removed together.
                table = self.mappings.setdefault(topic, {})
                if table.get(group.name) != mapping:
                    table[group.name] = mapping
                    self.encoded.drop(topic)
                group.mapped.add(topic)
                if number % SLICE == 0:
                    yield

    def _set_alive(self, told: BrokerRegistration, now_s: float) -> bool:
        before = self.alive.get(told.key)
        if before is not None and before.connection is not told.connection:
            self._forget_alive(told.key)
        self.alive[told.key] = Alive(told, now_s)
        self._of_connection.setdefault(told.connection, set()).add(told.key)
        return before is None

    def _set_filter_servers(self, told: BrokerRegistration) -> None:
        if told.filter_servers is None or self.filter_servers.get(told.key, ()) == told.filter_servers:
            return
        if told.filter_servers:
            self.filter_servers[told.key] = told.filter_servers
        else:
            del self.filter_servers[told.key]
        # Filter servers are stored by address, which two groups may share; brokers with filter servers are
        # rare.
        self.encoded.clear()

    def _answer(
        self, group: Group, told: BrokerRegistration, is_new: bool, lowest_changed: bool
    ) -> Registered:
        master_address = ha_address = None
        if told.id != MASTER_ID:
            master = group.addresses.get(MASTER_ID)
            if master is not None and (alive := self.alive.get((told.cluster, master))) is not None:
                master_address, ha_address = master, alive.ha_address
        notices = []
        if lowest_changed and self.options.notify_min_broker_id_changed:
            notices = [min_id_notice(group, ha_address=told.ha_address)]
        return Registered(
            is_new=is_new, master_address=master_address, ha_address=ha_address, notices=notices
        )

    # --- heartbeats -------------------------------------------------------------------------

    def version_of(self, cluster: str, address: str) -> DataVersion | None:
        alive = self.alive.get((cluster, address))
        return None if alive is None else alive.version

    def refresh(self, cluster: str, address: str, now_s: float) -> None:
        """Record a sign of life of a broker."""
        alive = self.alive.get((cluster, address))
        if alive is not None:
            alive.seen_s = now_s

    # --- removal ----------------------------------------------------------------------------

    def unregister(self, cluster: str, name: str, id: int, address: str) -> list[MinIdNotice]:
        """Unregister one broker, and remove its queues if it was the last of its name."""
        return at_once(self.unregistering(cluster, name, id, address))

    def unregistering(self, cluster: str, name: str, id: int, address: str) -> ChangeSteps[list[MinIdNotice]]:
        """Unregister one broker in slices."""
        key = cluster, address
        self._forget_alive(key)
        group = self.groups.get(name)
        if self.filter_servers.pop(key, None) is not None:
            self.encoded.clear()
        if group is None:
            return []
        was_lowest = bool(group.addresses) and id == group.lowest_id
        self._set_addresses(group, {i: a for i, a in group.addresses.items() if a != address})
        if not group.addresses:
            yield from self._removing_group(group)
            return []
        if group.acting_master and group.lowest_id > MASTER_ID:
            yield from self._changing_perms(group, lambda perm: perm & ~PERM_WRITE)
        if was_lowest and group.acting_master and self.options.notify_min_broker_id_changed:
            return [min_id_notice(group, offline_address=address)]
        return []

    def speaks(self, connection: Any) -> bool:
        """Return whether living brokers use this connection."""
        return connection in self._of_connection

    def connection_lost(self, connection: Any) -> tuple[list[BrokerKey], list[MinIdNotice]]:
        """Unregister the brokers of this connection."""
        return at_once(self.losing_connection(connection))

    def losing_connection(self, connection: Any) -> ChangeSteps[tuple[list[BrokerKey], list[MinIdNotice]]]:
        """Unregister the brokers of this connection in slices."""
        return (yield from self._forgetting_all(sorted(self._of_connection.get(connection, ()))))

    def forget_quiet(self, now_s: float) -> tuple[list[Any], list[BrokerKey], list[MinIdNotice]]:
        """Unregister expired brokers. Return their connections, which can be closed, their keys, and the
        notices."""
        return at_once(self.forgetting_quiet(now_s))

    def forgetting_quiet(
        self, now_s: float
    ) -> ChangeSteps[tuple[list[Any], list[BrokerKey], list[MinIdNotice]]]:
        """Unregister expired brokers in slices."""
        quiet = [key for key, alive in self.alive.items() if alive.seen_s + alive.timeout_s < now_s]
        connections = [self.alive[key].connection for key in quiet]
        gone, notices = yield from self._forgetting_all(quiet)
        return connections, gone, notices

    def _forgetting_all(
        self, keys: list[BrokerKey]
    ) -> ChangeSteps[tuple[list[BrokerKey], list[MinIdNotice]]]:
        notices: list[MinIdNotice] = []
        for cluster, address in keys:
            group = self.groups.get(self.alive[cluster, address].name)
            if group is None or address not in group.addresses.values():
                self._forget_alive((cluster, address))
                continue
            id = next(id for id, known in group.addresses.items() if known == address)
            notices += yield from self.unregistering(cluster, group.name, id, address)
        return keys, notices

    def _forget_alive(self, key: BrokerKey) -> None:
        alive = self.alive.pop(key, None)
        if alive is None:
            return
        keys = self._of_connection[alive.connection]
        keys.discard(key)
        if not keys:
            del self._of_connection[alive.connection]

    def _removing_group(self, group: Group) -> ChangeSteps[None]:
        del self.groups[group.name]
        for cluster, names in list(self.clusters.items()):
            names.discard(group.name)
            if not names:
                del self.clusters[cluster]
        yield from self._removing(group.topics | group.mapped, group)

    def _removing(self, topics: Iterable[str], group: Group) -> ChangeSteps[None]:
        for number, topic in enumerate(topics, start=1):
            self._remove_queues(topic, group)
            if number % SLICE == 0:
                yield

    # --- topics ------------------------------------------------------------------------------

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> str | None:
        """Add queues to a topic. If a broker name is unknown, add nothing and return that name."""
        queues = list(queues)
        for data in queues:
            if data.broker_name not in self.groups:
                return data.broker_name
        for data in queues:
            self._set_queues(topic, self.groups[data.broker_name], data)
        return None

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from all brokers, or from those of one cluster."""
        names = set(self.topics.get(topic, ()))
        if cluster:
            names &= self.clusters.get(cluster, set())
        for name in names:
            self._remove_queues(topic, self.groups[name])

    def wipe_write_perm(self, name: str) -> int:
        """Remove the write permission from every topic of a broker name, until its brokers register a change.
        Return the number of topics."""
        return at_once(self.wiping_write_perm(name))

    def wiping_write_perm(self, name: str) -> ChangeSteps[int]:
        """Remove the write permission in slices."""
        group = self.groups.get(name)
        return (
            0 if group is None else (yield from self._changing_perms(group, lambda perm: perm & ~PERM_WRITE))
        )

    def add_write_perm(self, name: str) -> int:
        """Restore read and write permissions on every topic of a broker name. Return the number of topics."""
        return at_once(self.adding_write_perm(name))

    def adding_write_perm(self, name: str) -> ChangeSteps[int]:
        """Restore read and write permissions in slices."""
        group = self.groups.get(name)
        if group is None:
            return 0
        return (yield from self._changing_perms(group, lambda perm: PERM_READ | PERM_WRITE))

    def order_changed(self, topic: str) -> None:
        """Drop the encoded route of a topic whose order configuration has changed."""
        self.encoded.drop(topic)

    def options_changed(self) -> None:
        self.encoded.clear()

    def _set_queues(self, topic: str, group: Group, data: QueueData) -> None:
        table = self.topics.get(topic)
        if table is None:
            table = self.topics[topic] = {}
            log.debug("topic_added topic=%r broker=%r", topic, group.name)
        if table.get(group.name) != data:
            table[group.name] = data
            self.encoded.drop(topic)
        group.topics.add(topic)

    def _remove_queues(self, topic: str, group: Group) -> None:
        group.topics.discard(topic)
        if topic in group.mapped:
            group.mapped.discard(topic)
            mappings = self.mappings[topic]
            del mappings[group.name]
            if not mappings:
                del self.mappings[topic]
            self.encoded.drop(topic)
        table = self.topics.get(topic)
        if table is None or table.pop(group.name, None) is None:
            return
        if not table:
            del self.topics[topic]
        self.encoded.drop(topic)

    def _changing_perms(self, group: Group, change: Callable[[int], int]) -> ChangeSteps[int]:
        for number, topic in enumerate(list(group.topics), start=1):
            if number % SLICE == 0:
                yield
            data = self.topics[topic][group.name]
            self._set_queues(topic, group, msgspec.structs.replace(data, perm=change(data.perm)))
        return len(group.topics)

    def _drop_encoded(self, group: Group) -> None:
        self.encoded.drop_all(group.topics)

    # --- the route of a topic ----------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None if no broker serves it."""
        table = self.topics.get(topic)
        if not table:
            return None
        groups = [self.groups[name] for name in table if name in self.groups]
        if not groups:
            return None
        brokers = tuple(group.data() for group in groups)
        filters = {}
        if self.filter_servers:
            filters = {
                address: servers
                for group in groups
                for address in group.addresses.values()
                if (servers := self.filter_servers.get((group.cluster, address)))
            }
        # The brokers of one name find each other through their member topic: it must show the real ids.
        if self.options.support_acting_master and not topic.startswith(MEMBER_TOPIC_PREFIX):
            brokers = tuple(with_acting_master(broker, table[broker.broker_name]) for broker in brokers)
        mappings = self.mappings.get(topic)
        return TopicRoute(
            broker_datas=brokers,
            # a group that is being removed has none
            queue_datas=tuple(table[group.name] for group in groups),
            filter_server_table=filters,
            order_topic_conf=self._order_of(topic) if self.options.order_message_enable else None,
            topic_queue_mapping_by_broker=dict(mappings) if mappings else None,
        )
