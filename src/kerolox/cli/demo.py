"""``kerolox demo``: see it work in a few seconds, with nothing to set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.cli.output import JsonFlag, Output, one_line_errors, output

if TYPE_CHECKING:
    from kerolox.net.dialer import Dialer

EXAMPLE = "Example: kerolox demo"

CLUSTER, BROKER, BROKER_ADDRESS = "DemoCluster", "demo-broker", "127.0.0.1:10911"
TOPICS = {"Orders": 8, "Payments": 4}


@one_line_errors
def play(json: JsonFlag = False) -> None:
    """Start a name server, register a pretend broker over TCP, ask who serves its topics, and stop."""
    from kerolox.net.loop import run

    run(_play(output(json)))


async def _play(out: Output) -> None:
    import tempfile
    from pathlib import Path

    from kerolox.cli.nameservers import NameServers
    from kerolox.cli.topic import ask_route, show_route
    from kerolox.nameserver.options import NamesrvOptions
    from kerolox.nameserver.server import NameServer
    from kerolox.net.dialer import Dialer
    from kerolox.net.loop import LOOP_NAME

    with tempfile.TemporaryDirectory(prefix="kerolox-demo-") as directory:
        options = NamesrvOptions(
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=str(Path(directory) / "kvConfig.json"),
            config_store_path=str(Path(directory) / "namesrv.properties"),
        )
        async with NameServer(options) as nameserver, Dialer() as broker, Dialer() as client:
            out.note(f"1. A name server runs on {nameserver.address} ({LOOP_NAME}).")
            await _register(broker, nameserver.address)
            out.note(f"2. Broker {BROKER} has registered {len(TOPICS)} topics over TCP, as RocketMQ's do.")
            out.note("3. A client asks the name server who serves the first of them:\n")
            (topic, *_) = TOPICS
            show_route(out, topic, await ask_route(NameServers([nameserver.address], client), topic))
    out.note("Run your own with `kerolox nameserver`; RocketMQ's brokers and clients can use it.")


async def _register(broker: Dialer, address: str) -> None:
    from kerolox.clock import SYSTEM_CLOCK
    from kerolox.errors import RequestFailed
    from kerolox.protocol.bodies.registration import Registration, body_crc32
    from kerolox.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.registration import RegisterBrokerRequest

    table = TopicConfigTable(
        data_version=DataVersion(counter=1, timestamp=SYSTEM_CLOCK.wall_ms()),
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
            for name, queues in TOPICS.items()
        },
    )
    body = Registration(topic_config_serialize_wrapper=table).encode()
    header = RegisterBrokerRequest(
        broker_name=BROKER,
        broker_addr=BROKER_ADDRESS,
        cluster_name=CLUSTER,
        broker_id=0,
        ha_server_addr="127.0.0.1:10912",
        body_crc32=body_crc32(body),
    )
    answer = await broker.call(address, RequestCode.REGISTER_BROKER, header, body)
    if answer.code != 0:
        raise RequestFailed(answer.code, answer.remark, address=address, request="REGISTER_BROKER")
