"""Who serves which topic: every rule of registration, leaving, and the routes that follow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kerolox.nameserver import listings
from kerolox.nameserver import routes as route_tables
from kerolox.nameserver.brokers import SURELY_ALIVE_S, BrokerProcess, BrokerRegistration
from kerolox.nameserver.changes import SLICE, at_once
from kerolox.nameserver.encoded_routes import in_zone
from kerolox.nameserver.options import NamesrvOptions
from kerolox.nameserver.routes import Routes
from kerolox.protocol.bodies.queue_mapping import QueueMapping
from kerolox.protocol.bodies.routes import QueueData, TopicRoute
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def topics(*names: str, **settings: Any) -> dict[str, TopicConfig]:
    settings = {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6} | settings
    return {name: TopicConfig(topic_name=name, **settings) for name in names}


def broker(**changes: Any) -> BrokerRegistration:
    told: dict[str, Any] = {
        "cluster": "c1",
        "name": "broker-a",
        "id": 0,
        "address": A,
        "ha_address": "10.0.0.1:10912",
        "version": DataVersion(counter=1, timestamp=1000),
        "topics": topics("t1", "t2"),
        "filter_servers": (),
        "connection": "conn-a",
    }
    return BrokerRegistration(**(told | changes))


def slave(id: int = 1, address: str = B, **changes: Any) -> BrokerRegistration:
    told = {"id": id, "address": address, "connection": f"conn-{address}", "ha_address": "10.0.0.2:10912"}
    return broker(**(told | changes))


def version(counter: int, state: int = 0) -> DataVersion:
    return DataVersion(counter=counter, timestamp=1000, state_version=state)


@pytest.fixture
def options() -> NamesrvOptions:
    return NamesrvOptions()


@pytest.fixture
def routes(options: NamesrvOptions) -> Routes:
    return Routes(options)


def found(routes: Routes, topic: str) -> TopicRoute:
    route = routes.route(topic)
    assert route is not None
    return route


def addresses(routes: Routes, topic: str = "t1") -> dict[int, str]:
    (group,) = found(routes, topic).broker_datas
    return group.broker_addrs


def perms(routes: Routes, topic: str = "t1") -> dict[str, int]:
    return {queues.broker_name: queues.perm for queues in found(routes, topic).queue_datas}


# --- registration -----------------------------------------------------------------------------


def test_a_registered_broker_serves_its_topics(routes: Routes) -> None:
    result = routes.register(broker(), 0)
    assert result.is_new
    assert (result.refused, result.ignored, result.master_address) == (None, None, None)
    route = found(routes, "t1")
    assert addresses(routes) == {0: A}
    assert route.queue_datas == (
        QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4, perm=6),
    )
    assert routes.route("t3") is None


def test_a_second_registration_is_not_new(routes: Routes) -> None:
    routes.register(broker(), 0)
    assert not routes.register(broker(), 1).is_new


@pytest.mark.parametrize(("names", "refused"), [((), False), (("t1",), True), (("t1", "t2"), False)])
def test_a_first_registration_with_exactly_one_topic_is_refused(
    routes: Routes, names: tuple[str, ...], refused: bool
) -> None:
    result = routes.register(broker(topics=topics(*names)), 0)
    assert (result.refused is not None) is refused
    assert bool(routes.groups) is not refused
    assert bool(routes.clusters) is not refused
    assert bool(routes.alive) is not refused


def test_a_new_id_of_a_known_name_with_one_topic_is_refused_too(routes: Routes) -> None:
    routes.register(broker(), 0)
    assert routes.register(slave(topics=topics("t1")), 0).refused
    assert addresses(routes) == {0: A}


def test_a_known_broker_may_register_a_single_topic_and_keeps_the_others(routes: Routes) -> None:
    routes.register(broker(), 0)
    assert routes.register(broker(topics=topics("t3"), version=version(2)), 1).refused is None
    assert set(routes.topics) == {"t1", "t2", "t3"}


def test_a_registration_does_not_take_topics_away(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(broker(topics=topics("t1", "t3"), version=version(2)), 1)
    assert set(routes.topics) == {"t1", "t2", "t3"}


def test_unless_the_option_says_so(routes: Routes, options: NamesrvOptions) -> None:
    options.delete_topic_with_broker_registration = True
    routes.register(broker(), 0)
    routes.register(broker(name="broker-b", address=B, connection="b", topics=topics("t2", "t4")), 0)
    routes.register(broker(topics=topics("t1", "t3"), version=version(2)), 1)
    assert set(routes.topics) == {"t1", "t2", "t3", "t4"}
    assert set(perms(routes, "t2")) == {"broker-b"}


def test_an_unchanged_version_does_not_touch_known_topics(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(broker(topics=topics("t1", "t2", perm=4)), 1)
    assert perms(routes) == {"broker-a": 6}


def test_an_unchanged_version_still_adds_a_topic_that_is_missing(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.delete_topic("t2")
    routes.register(broker(topics=topics("t1", "t2", perm=4)), 1)
    assert perms(routes, "t1") == {"broker-a": 6}
    assert perms(routes, "t2") == {"broker-a": 4}


@pytest.mark.parametrize(
    "other",
    [DataVersion(counter=2, timestamp=1000), DataVersion(counter=1, timestamp=999), version(1, state=1)],
)
def test_any_part_of_the_version_counts_as_a_change(routes: Routes, other: DataVersion) -> None:
    routes.register(broker(), 0)
    routes.register(broker(topics=topics("t1", "t2", perm=4), version=other), 1)
    assert perms(routes) == {"broker-a": 4}


def test_a_slaves_topics_are_not_taken(routes: Routes) -> None:
    routes.register(broker(), 0)
    result = routes.register(slave(topics=topics("t1", "s2", perm=4)), 0)
    assert set(routes.topics) == {"t1", "t2"}
    assert (result.master_address, result.ha_address) == (A, "10.0.0.1:10912")
    assert addresses(routes) == {0: A, 1: B}


def test_a_slave_without_master_is_told_of_none_and_brings_no_topics(routes: Routes) -> None:
    result = routes.register(slave(), 0)
    assert (result.master_address, result.ha_address) == (None, None)
    assert not routes.topics


def test_a_slave_is_not_told_of_a_master_of_another_cluster(routes: Routes) -> None:
    routes.register(broker(), 0)
    assert routes.register(slave(cluster="c2"), 0).master_address is None


@pytest.mark.parametrize(("acting_master", "perm"), [(True, 4), (False, 6)])
def test_the_lowest_slave_that_knows_of_acting_masters_brings_topics(
    routes: Routes, acting_master: bool, perm: int
) -> None:
    routes.register(slave(2, C, acting_master=acting_master), 0)
    assert perms(routes) == {"broker-a": perm}
    routes.register(slave(3, B, acting_master=acting_master, topics=topics("s1", "s2")), 0)
    assert "s1" not in routes.topics


def test_a_slave_that_became_master_is_no_slave_any_more(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(slave(), 0)
    routes.unregister("c1", "broker-a", 0, A)
    routes.register(slave(id=0, version=version(2)), 1)
    assert addresses(routes) == {0: B}


def test_an_older_state_version_does_not_take_over_an_id(routes: Routes) -> None:
    routes.register(broker(version=version(1, state=5)), 0)
    result = routes.register(broker(address=B, connection="b", version=version(9, state=4)), 1)
    assert result.ignored
    assert result.refused is None
    assert addresses(routes) == {0: A}
    assert ("c1", B) not in routes.alive


def test_an_older_state_version_loses_its_place_as_slave_as_well(routes: Routes) -> None:
    routes.register(broker(version=version(1, state=5)), 0)
    routes.register(slave(version=version(1, state=4)), 0)
    assert routes.register(slave(id=0, version=version(2, state=4)), 1).ignored
    assert addresses(routes) == {0: A}
    assert set(routes.alive) == {("c1", A)}


@pytest.mark.parametrize("state", [5, 6])
def test_an_equal_or_newer_state_version_takes_over(routes: Routes, state: int) -> None:
    routes.register(broker(version=version(1, state=5)), 0)
    routes.register(broker(address=B, connection="b", version=version(1, state=state)), 1)
    assert addresses(routes) == {0: B}
    assert routes.connection_lost("conn-a") == ([], [])
    assert addresses(routes) == {0: B}


def test_a_dead_rivals_state_version_does_not_count(routes: Routes) -> None:
    routes.register(broker(version=version(1, state=5)), 0)
    del routes.alive["c1", A]
    routes.register(broker(address=B, connection="b", version=version(1, state=4)), 1)
    assert addresses(routes) == {0: B}


def test_the_same_address_under_a_new_name_leaves_the_old_one(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(broker(name="broker-b", topics=topics("t2", "t3")), 1)
    assert set(routes.groups) == {"broker-b"}
    assert set(routes.topics) == {"t2", "t3"}
    assert routes.clusters == {"c1": {"broker-b"}}


def test_filter_servers_come_and_go(routes: Routes) -> None:
    routes.register(broker(filter_servers=("f1", "f2")), 0)
    routes.register(slave(), 0)
    assert found(routes, "t1").filter_server_table == {A: ("f1", "f2")}
    routes.register(broker(filter_servers=None), 1)
    assert found(routes, "t1").filter_server_table == {A: ("f1", "f2")}
    routes.register(broker(filter_servers=()), 2)
    assert found(routes, "t1").filter_server_table == {}


def test_static_topics_show_their_mapping_by_broker(routes: Routes) -> None:
    mapping = QueueMapping(bname="broker-a", topic="t1", total_queues=8, curr_id_map={0: 0}, epoch=3)
    routes.register(broker(mappings={"t1": mapping}), 0)
    assert found(routes, "t1").topic_queue_mapping_by_broker == {"broker-a": mapping}
    assert found(routes, "t2").topic_queue_mapping_by_broker is None
    newer = QueueMapping(bname="broker-a", topic="t1", total_queues=8, epoch=4)
    routes.register(broker(mappings={"t1": newer}), 1)  # same version: as it was
    assert found(routes, "t1").topic_queue_mapping_by_broker == {"broker-a": mapping}
    routes.register(broker(mappings={"t1": newer}, version=version(2)), 2)
    assert found(routes, "t1").topic_queue_mapping_by_broker == {"broker-a": newer}


def test_a_broker_that_goes_takes_its_mappings_along(routes: Routes) -> None:
    """Nobody else's route may show them, and nothing of them stays in memory."""
    mapping = QueueMapping(bname="broker-a", topic="t1", total_queues=8, curr_id_map={0: 0}, epoch=3)
    routes.register(broker(mappings={"t1": mapping, "only-mapped": mapping}), 0)
    other = broker(name="broker-b", address=B, connection="b", topics=topics("t1", "t3"))
    routes.register(other, 0)
    assert found(routes, "t1").topic_queue_mapping_by_broker == {"broker-a": mapping}
    routes.unregister("c1", "broker-a", 0, A)
    assert found(routes, "t1").topic_queue_mapping_by_broker is None
    assert routes.mappings == {}
    routes.register(broker(mappings={"t1": mapping}), 1)
    routes.delete_topic("t1")
    assert routes.mappings == {}


def test_what_a_broker_may_bring_is_bounded(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_tables, "TOPICS_OF_BROKER_MAX", 3)
    many = routes.register(broker(topics=topics("t1", "t2", "t3", "t4")), 0)
    assert many.refused == "4 topics of broker broker-a, the limit is 3 (TOPICS_OF_BROKER_MAX)"
    assert not routes.topics
    assert routes.register(broker(topics=topics("t1", "t2", "t3")), 0).refused is None
    again = broker(topics=topics("t3", "t4"), version=version(2))
    assert "4 topics of broker broker-a" in (routes.register(again, 1).refused or "")
    monkeypatch.setattr(route_tables, "TOPICS_MAX", 4)
    other = broker(name="b", address=B, connection="b", topics=topics("t1", "t5", "t6"))
    assert routes.register(other, 1).refused == "3 topics and 2 new ones, the limit is 4 (TOPICS_MAX)"
    monkeypatch.setattr(route_tables, "BROKERS_MAX", 1)
    other = broker(name="b", address=B, connection="b")
    assert routes.register(other, 1).refused == "1 brokers are registered, the limit is 1 (BROKERS_MAX)"
    named = routes.register(broker(name="n" * 300), 1)
    assert "name has 300 characters" in (named.refused or "")
    servers = routes.register(broker(filter_servers=tuple(map(str, range(101)))), 1)
    assert "FILTER_SERVERS_MAX" in (servers.refused or "")


def test_a_route_has_no_queues_of_a_broker_that_is_just_going(routes: Routes) -> None:
    names = [f"t{number}" for number in range(3 * SLICE)]
    routes.register(broker(topics=topics(*names)), 0)
    routes.register(broker(name="broker-b", address=B, connection="b", topics=topics(*names)), 0)
    for standard in (True, False):
        assert routes.encoded.get("t7", standard)
    steps = routes.unregistering("c1", "broker-a", 0, A)
    slices = 0
    for _ in steps:
        slices += 1
        for name in names[::100]:
            assert set(perms(routes, name)) == {"broker-b"}
            assert b"broker-a" not in (routes.encoded.get(name, True) or b"")
    assert slices == 3


# --- leaving ----------------------------------------------------------------------------------


def test_a_topic_of_too_many_queues_is_not_taken(routes: Routes, caplog: pytest.LogCaptureFixture) -> None:
    """Clients make an object for each queue, and refuse the route of such a topic."""
    routes.register(broker(), 0)
    large = TopicConfig(topic_name="t1", read_queue_nums=4, write_queue_nums=2**31 - 1)
    fine = TopicConfig(topic_name="t2", read_queue_nums=4, write_queue_nums=65_536)
    wanted = broker(name="broker-b", address=B, connection="b", topics={"t1": large, "t2": fine})
    assert routes.register(wanted, 0).refused is None
    assert set(perms(routes, "t1")) == {"broker-a"}
    assert set(perms(routes, "t2")) == {"broker-a", "broker-b"}
    assert "2147483647 queues, the limit is 65536" in caplog.text


def test_the_last_broker_of_a_name_takes_its_topics_along(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(broker(name="broker-b", address=B, connection="b", topics=topics("t2", "t3")), 0)
    routes.unregister("c1", "broker-a", 0, A)
    assert set(routes.topics) == {"t2", "t3"}
    assert set(perms(routes, "t2")) == {"broker-b"}
    assert routes.clusters == {"c1": {"broker-b"}}
    routes.unregister("c1", "broker-b", 0, B)
    assert (routes.clusters, routes.groups, routes.topics, routes.alive) == ({}, {}, {}, {})
    assert routes._of_connection == {}


def test_a_group_without_master_still_serves(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(slave(), 0)
    routes.unregister("c1", "broker-a", 0, A)
    assert addresses(routes) == {1: B}
    assert perms(routes) == {"broker-a": 6}


def test_a_group_with_acting_master_is_not_written_when_its_master_has_gone(routes: Routes) -> None:
    routes.register(broker(acting_master=True), 0)
    routes.register(slave(acting_master=True), 0)
    routes.unregister("c1", "broker-a", 0, A)
    assert perms(routes) == {"broker-a": 4}
    routes.register(broker(acting_master=True), 1)
    assert perms(routes) == {"broker-a": 6}


def test_unregistering_an_unknown_broker_changes_nothing(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.unregister("c1", "broker-x", 0, "1.2.3.4:1")
    routes.unregister("c1", "broker-a", 0, "1.2.3.4:1")
    assert addresses(routes) == {0: A}


def test_a_lost_connection_takes_all_its_brokers_along(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(broker(name="broker-b", address=B, topics=topics("t2", "t3")), 0)
    routes.register(broker(name="broker-c", address=C, connection="c", topics=topics("t4", "t5")), 0)
    assert routes.connection_lost("conn-a")[0] == [("c1", A), ("c1", B)]
    assert set(routes.groups) == {"broker-c"}
    assert routes.connection_lost("conn-a") == ([], [])


def test_a_broker_that_came_back_survives_the_end_of_its_old_connection(routes: Routes) -> None:
    routes.register(broker(connection="old"), 0)
    routes.register(broker(connection="new"), 1)
    assert routes.connection_lost("old") == ([], [])
    assert addresses(routes) == {0: A}


def test_brokers_that_are_quiet_for_too_long_are_forgotten(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(broker(name="short", address=B, connection="b", timeout_s=10.0), 0)
    assert routes.forget_quiet(10.0) == ([], [], [])
    assert routes.forget_quiet(10.1) == (["b"], [("c1", B)], [])
    routes.refresh("c1", A, 100.0)
    routes.refresh("c1", "nobody", 100.0)
    assert routes.forget_quiet(220.0)[1] == []
    assert routes.forget_quiet(220.1)[1] == [("c1", A)]
    assert not routes.groups


def test_the_stored_version_is_that_of_the_last_registration(routes: Routes) -> None:
    assert routes.version_of("c1", A) is None
    routes.register(broker(), 0)
    routes.register(broker(version=version(7)), 0)
    assert routes.version_of("c1", A) == version(7)
    assert routes.version_of("c2", A) is None


# --- notices of a new lowest id ---------------------------------------------------------------


def test_no_notices_unless_wanted(routes: Routes) -> None:
    routes.register(slave(acting_master=True), 0)
    assert routes.register(broker(acting_master=True), 0).notices == []
    assert routes.unregister("c1", "broker-a", 0, A) == []


def test_a_new_lowest_id_is_told_to_those_who_were_there(routes: Routes, options: NamesrvOptions) -> None:
    options.notify_min_broker_id_changed = True
    routes.register(slave(), 0)
    routes.register(slave(2, C), 0)
    (notice,) = routes.register(broker(), 0).notices
    assert sorted(notice.to) == [B, C]
    assert (notice.min_id, notice.min_address, notice.offline_address) == (0, A, None)
    assert notice.ha_address == "10.0.0.1:10912"
    assert routes.register(broker(), 1).notices == []


def test_a_lowest_id_that_left_is_told_to_those_who_remain(routes: Routes, options: NamesrvOptions) -> None:
    options.notify_min_broker_id_changed = True
    for told in (broker(acting_master=True), slave(acting_master=True), slave(2, C, acting_master=True)):
        routes.register(told, 0)
    assert routes.unregister("c1", "broker-a", 2, C) == []
    _, (notice,) = routes.connection_lost("conn-a")
    assert (notice.to, notice.min_id, notice.min_address, notice.offline_address) == ([B], 1, B, A)


def test_a_group_without_acting_masters_is_not_told(routes: Routes, options: NamesrvOptions) -> None:
    options.notify_min_broker_id_changed = True
    routes.register(broker(), 0)
    routes.register(slave(), 0)
    assert routes.unregister("c1", "broker-a", 0, A) == []


# --- topics -----------------------------------------------------------------------------------


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(broker(name="broker-b", cluster="c2", address=B, connection="b"), 0)
    routes.delete_topic("t1", "c2")
    assert set(perms(routes)) == {"broker-a"}
    routes.delete_topic("t1", "nowhere")
    assert set(perms(routes)) == {"broker-a"}
    routes.delete_topic("t1")
    assert routes.route("t1") is None
    routes.delete_topic("t2")
    assert routes.topics == {}
    routes.delete_topic("t2")


def test_queues_are_added_only_at_known_brokers(routes: Routes) -> None:
    routes.register(broker(), 0)
    queues = QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
    assert routes.register_topic("t9", [queues]) is None
    assert found(routes, "t9").queue_datas == (queues,)
    stranger = QueueData(broker_name="broker-x")
    assert routes.register_topic("t10", [queues, stranger]) == "broker-x"
    assert routes.route("t10") is None
    routes.unregister("c1", "broker-a", 0, A)
    assert routes.topics == {}


def test_write_permission_is_wiped_and_given_back_until_the_next_change(routes: Routes) -> None:
    routes.register(broker(topics=topics("t1", perm=7) | topics("t2", perm=4)), 0)
    assert routes.wipe_write_perm("broker-a") == 2
    assert (perms(routes, "t1"), perms(routes, "t2")) == ({"broker-a": 5}, {"broker-a": 4})
    routes.register(broker(), 1)
    assert perms(routes, "t1") == {"broker-a": 5}
    assert routes.add_write_perm("broker-a") == 2
    assert (perms(routes, "t1"), perms(routes, "t2")) == ({"broker-a": 6}, {"broker-a": 6})
    routes.register(broker(version=version(2), topics=topics("t1", "t2", perm=4)), 2)
    assert perms(routes, "t1") == {"broker-a": 4}
    assert (routes.wipe_write_perm("nobody"), routes.add_write_perm("nobody")) == (0, 0)


# --- the route of a topic ---------------------------------------------------------------------


def test_the_order_configuration_is_shown_only_when_enabled(options: NamesrvOptions) -> None:
    routes = Routes(options, {"t1": "broker-a:4"}.get)
    routes.register(broker(), 0)
    assert found(routes, "t1").order_topic_conf is None
    options.order_message_enable = True
    assert found(routes, "t1").order_topic_conf == "broker-a:4"
    assert found(routes, "t2").order_topic_conf is None


def test_the_lowest_slave_poses_as_master_when_nothing_can_be_written(
    routes: Routes, options: NamesrvOptions
) -> None:
    member_topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    routes.register(broker(acting_master=True, topics=topics("t1", "t2", member_topic)), 0)
    routes.register(slave(2, C, acting_master=True), 0)
    routes.register(slave(1, B, acting_master=True), 0)
    routes.unregister("c1", "broker-a", 0, A)
    assert addresses(routes) == {1: B, 2: C}
    options.support_acting_master = True
    assert addresses(routes) == {0: B, 2: C}
    assert addresses(routes, member_topic) == {1: B, 2: C}
    routes.add_write_perm("broker-a")
    assert addresses(routes) == {1: B, 2: C}


def test_a_group_that_did_not_ask_for_it_gets_no_acting_master(
    routes: Routes, options: NamesrvOptions
) -> None:
    options.support_acting_master = True
    routes.register(broker(topics=topics("t1", "t2", perm=4)), 0)
    routes.register(slave(), 0)
    routes.unregister("c1", "broker-a", 0, A)
    assert addresses(routes) == {1: B}


def test_the_zone_filter_drops_brokers_with_a_master_elsewhere(routes: Routes) -> None:
    routes.register(broker(zone="east", filter_servers=("f",)), 0)
    routes.register(broker(name="broker-b", address=B, connection="b", zone="west", filter_servers=("g",)), 0)
    routes.register(slave(1, C, name="broker-c", acting_master=False, zone="west"), 0)
    near = in_zone(found(routes, "t1"), "EAST")
    assert {data.broker_name for data in near.broker_datas} == {"broker-a", "broker-c"}
    assert {data.broker_name for data in near.queue_datas} == {"broker-a", "broker-c"}
    assert near.filter_server_table == {A: ("f",)}
    assert in_zone(near, "east") is near


# --- encoded answers --------------------------------------------------------------------------


def test_both_spellings_of_a_route(routes: Routes) -> None:
    routes.register(broker(zone="ostküste"), 0)
    assert routes.encoded.get("t1", True) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"c1",'
        b'"enableActingMaster":false,"zoneName":"ostk\\u00fcste"}],"filterServerTable":{},"queueDatas":['
        b'{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    bare = routes.encoded.get("t1", False)
    assert bare is not None
    assert b'{0:"10.0.0.1:10911"}' in bare
    assert "ostküste".encode() in bare


def test_an_encoded_route_is_made_once(routes: Routes) -> None:
    routes.register(broker(), 0)
    first = routes.encoded.get("t1", True)
    routes.register(broker(), 30)
    routes.register(broker(topics=topics("t3"), version=version(2)), 30)
    routes.refresh("c1", A, 31)
    assert routes.encoded.get("t1", True) is first
    assert routes.encoded.built == 1
    for number in range(5):
        assert routes.encoded.get(f"unknown-{number}", True) is None
    assert len(routes.encoded._standard) == 1


CHANGES = {
    "perm": lambda r: r.register(broker(topics=topics("t1", "t2", perm=4), version=version(2)), 1),
    "slave comes": lambda r: r.register(slave(1, C), 1),
    "zone": lambda r: r.register(broker(zone="west"), 1),
    "acting master": lambda r: r.register(broker(acting_master=True), 1),
    "filter servers": lambda r: r.register(broker(filter_servers=("f",)), 1),
    "mapping": lambda r: r.register(
        broker(mappings={"t1": QueueMapping(bname="broker-a")}, version=version(2)), 1
    ),
    "second group comes": lambda r: r.register(broker(name="b", address=B, connection="b"), 1),
    "wiped": lambda r: r.wipe_write_perm("broker-a"),
    "unregistered": lambda r: r.unregister("c1", "broker-a", 0, A),
    "connection lost": lambda r: r.connection_lost("conn-a"),
    "quiet": lambda r: r.forget_quiet(1000),
    "deleted": lambda r: r.delete_topic("t1"),
    "deleted in cluster": lambda r: r.delete_topic("t1", "c1"),
    "registered": lambda r: r.register_topic("t1", [QueueData(broker_name="broker-a", perm=1)]),
    "taken over": lambda r: r.register(broker(address=C, connection="c"), 1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("standard", [True, False])
def test_any_change_drops_the_encoded_route(routes: Routes, change: str, standard: bool) -> None:
    routes.register(broker(), 0)
    before = routes.encoded.get("t1", standard)
    CHANGES[change](routes)
    after = routes.encoded.get("t1", standard)
    assert after != before
    route = routes.route("t1")
    assert after == (
        None if route is None else route.encode(quote_integer_keys=standard, ascii_only=standard)
    )


def test_changed_options_and_order_drop_encoded_routes(options: NamesrvOptions) -> None:
    order = {"t1": "broker-a:4"}
    routes = Routes(options, order.get)
    routes.register(broker(), 0)
    for topic in ("t1", "t2"):
        routes.encoded.get(topic, True)
    options.order_message_enable = True
    routes.options_changed()
    assert b'"orderTopicConf":"broker-a:4"' in (routes.encoded.get("t1", True) or b"")
    order["t1"] = "broker-a:8"
    routes.order_changed("t1")
    assert b'"orderTopicConf":"broker-a:8"' in (routes.encoded.get("t1", True) or b"")


# --- lists ------------------------------------------------------------------------------------


def test_lists(routes: Routes) -> None:
    assert listings.system_topics(routes).broker_addr is None
    routes.register(broker(topics=topics("u", topic_sys_flag=1) | topics("us", topic_sys_flag=3)), 0)
    told = broker(
        name="broker-b",
        cluster="c2",
        address=B,
        connection="b",
        topics=topics("s", topic_sys_flag=2) | topics("plain"),
    )
    routes.register(told, 0)
    assert listings.all_topics(routes).topic_list == ("plain", "s", "u", "us")
    assert listings.cluster_topics(routes, "c1").topic_list == ("u", "us")
    assert listings.cluster_topics(routes, "nowhere").topic_list == ()
    assert listings.unit_topics(routes).topic_list == ("u", "us")
    assert listings.unit_subscribed_topics(routes).topic_list == ("s", "us")
    assert listings.unit_subscribed_not_unit_topics(routes).topic_list == ("s",)
    system = listings.system_topics(routes)
    assert system.topic_list == ("broker-a", "broker-b", "c1", "c2")
    assert system.broker_addr == A


def test_cluster_info_and_members(routes: Routes) -> None:
    routes.register(broker(), 0)
    routes.register(slave(), 0)
    assert json.loads(listings.cluster_info(routes).encode()) == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": A, "1": B},
                "brokerName": "broker-a",
                "cluster": "c1",
                "enableActingMaster": False,
            }
        },
        "clusterAddrTable": {"c1": ["broker-a"]},
    }
    members = listings.member_group(routes, "c1", "broker-a")
    assert (members.broker_addrs, members.cluster) == ({0: A, 1: B}, "c1")
    assert listings.member_group(routes, "c1", "nobody").broker_addrs == {}


# --- two processes with one identity -------------------------------------------------------------


def of_process(start: int, address: str, identity: str = "settings 1", **changes: Any) -> BrokerRegistration:
    return slave(1, address, process=BrokerProcess(identity, start), connection=f"conn-{start}", **changes)


def test_a_second_process_with_the_same_identity_is_refused_by_name(routes: Routes) -> None:
    assert routes.register(of_process(11, B), 0.0).refused is None
    refused = routes.register(of_process(12, C), SURELY_ALIVE_S).refused
    assert refused is not None
    assert f"broker broker-a with id 1 is registered from {B} by another process, which is alive" in refused
    assert "was a store directory copied?" in refused
    assert routes.groups["broker-a"].addresses == {1: B}
    assert routes.register(of_process(11, B), 40.0).refused is None
    # The first one is gone: at once when its connection closes, else when it was silent for so long.
    at_once(routes.losing_connection("conn-11"))
    assert routes.register(of_process(12, C), 41.0).refused is None
    assert routes.register(of_process(13, B), 42.0 + SURELY_ALIVE_S).refused is None
    assert routes.groups["broker-a"].addresses == {1: B}


def test_a_process_that_starts_anew_or_was_promoted_is_not_refused(routes: Routes) -> None:
    routes.register(of_process(11, B), 0.0)
    assert routes.register(of_process(12, B), 1.0).refused is None  # at its address
    promoted = broker(address=C, process=BrokerProcess("settings 2", 13), connection="conn-13")
    assert routes.register(broker(process=BrokerProcess("settings 0", 14)), 2.0).refused is None
    assert routes.register(promoted, 3.0).refused is None
    assert routes.register(slave(1, C), 4.0).refused is None  # RocketMQ's brokers have no number


def test_a_leader_that_was_promoted_by_its_settings_takes_the_place_of_a_frozen_one(routes: Routes) -> None:
    """Both have brokerId=0 in their settings, and the connection of the frozen one stays open."""
    frozen, promoted = BrokerProcess("settings 0", 11), BrokerProcess("settings 0", 12)
    routes.register(broker(process=frozen, version=version(5, state=2)), 0.0)
    refused = routes.register(broker(address=C, process=promoted, version=version(6, state=2)), 1.0).refused
    assert refused is not None
    later = broker(address=C, process=promoted, version=version(7, state=3))
    assert routes.register(later, 2.0).refused is None
    assert addresses(routes) == {0: C}
    # Of followers the number says nothing: it is that of the leader whose tables they copied last.
    routes.register(of_process(21, B, version=version(1, state=3)), 3.0)
    assert routes.register(of_process(22, A, version=version(1, state=4)), 4.0).refused is not None
