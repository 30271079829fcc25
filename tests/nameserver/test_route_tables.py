"""Whatever happens in whatever order: the tables agree, and what is kept encoded is what is true."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.nameserver.brokers import BrokerRegistration
from kerolox.nameserver.options import NamesrvOptions
from kerolox.nameserver.routes import Routes
from kerolox.protocol.bodies.queue_mapping import QueueMapping
from kerolox.protocol.bodies.routes import QueueData
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig

CLUSTERS, NAMES, ADDRESSES = ["c1", "c2"], ["a", "b"], ["h1:1", "h2:1", "h3:1"]
TOPICS = ["t1", "t2", "t3"]
ids = st.integers(0, 2)


def config(topic: str, perm: int) -> TopicConfig:
    return TopicConfig(topic_name=topic, perm=perm)


registrations = st.builds(
    BrokerRegistration,
    cluster=st.sampled_from(CLUSTERS),
    name=st.sampled_from(NAMES),
    id=ids,
    address=st.sampled_from(ADDRESSES),
    version=st.builds(DataVersion, counter=st.integers(0, 2), state_version=st.integers(0, 1)),
    topics=st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7)).map(
        lambda perms: {topic: config(topic, perm) for topic, perm in perms.items()}
    ),
    mappings=st.just({}) | st.just({"t1": QueueMapping(bname="a")}),
    acting_master=st.sampled_from([None, False, True]),
    zone=st.sampled_from([None, "east"]),
    filter_servers=st.sampled_from([None, (), ("f",)]),
    connection=st.sampled_from(["x", "y", "z"]),
)
steps = st.one_of(
    st.tuples(st.just("register"), registrations),
    st.tuples(
        st.just("unregister"),
        st.sampled_from(CLUSTERS),
        st.sampled_from(NAMES),
        ids,
        st.sampled_from(ADDRESSES),
    ),
    st.tuples(st.just("connection_lost"), st.sampled_from(["x", "y", "z"])),
    st.tuples(st.just("forget_quiet")),
    st.tuples(st.just("delete_topic"), st.sampled_from(TOPICS), st.sampled_from([None, *CLUSTERS])),
    st.tuples(st.just("wipe_write_perm"), st.sampled_from(NAMES)),
    st.tuples(st.just("add_write_perm"), st.sampled_from(NAMES)),
    st.tuples(st.just("register_topic"), st.sampled_from(TOPICS), st.sampled_from(NAMES)),
)


def do(routes: Routes, step: tuple[Any, ...], now_s: float) -> None:
    what, *rest = step
    if what == "register":
        routes.register(rest[0], now_s)
    elif what == "forget_quiet":
        routes.forget_quiet(now_s)
    elif what == "register_topic":
        routes.register_topic(rest[0], [QueueData(broker_name=rest[1], perm=6)])
    else:
        getattr(routes, what)(*rest)


def check(routes: Routes) -> None:
    for name, group in routes.groups.items():
        assert group.addresses
        assert len(set(group.addresses.values())) == len(group.addresses)
        assert any(name in names for names in routes.clusters.values())
        assert group.topics == {topic for topic, table in routes.topics.items() if name in table}
    for names in routes.clusters.values():
        assert names
        assert names <= set(routes.groups)
    for table in routes.topics.values():
        assert table
        assert set(table) <= set(routes.groups)
    for key, alive in routes.alive.items():
        assert key in routes._of_connection[alive.connection]
    assert sum(map(len, routes._of_connection.values())) == len(routes.alive)
    for topic in TOPICS:
        route = routes.route(topic)
        for standard in (True, False):
            fresh = None
            if route is not None:
                fresh = route.encode(quote_integer_keys=standard, ascii_only=standard)
            assert routes.encoded.get(topic, standard) == fresh


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(steps, max_size=25), st.booleans(), st.booleans())
def test_the_tables_agree_after_any_history(
    history: list[tuple[Any, ...]], acting_master: bool, delete_topics: bool
) -> None:
    routes = Routes(
        NamesrvOptions(
            support_acting_master=acting_master,
            delete_topic_with_broker_registration=delete_topics,
            notify_min_broker_id_changed=True,
        )
    )
    for number, step in enumerate(history):
        do(routes, step, number * 30.0)
        check(routes)


def test_filter_servers_of_an_address_that_moves_to_another_cluster() -> None:
    def broker(cluster: str, name: str, servers: tuple[str, ...] | None = None) -> BrokerRegistration:
        return BrokerRegistration(
            cluster=cluster, name=name, id=0, address="h1:1", version=DataVersion(), topics={},
            filter_servers=servers, connection="x",
        )  # fmt: skip

    routes = Routes(NamesrvOptions())
    routes.register(broker("c2", "b"), 0)
    routes.register_topic("t1", [QueueData(broker_name="b", perm=6)])
    for told in (broker("c1", "a"), broker("c1", "a", ("f",)), broker("c2", "a", ("f",))):
        routes.register(told, 1)
        check(routes)
