"""What is not there is refused, never taken with a nod and forgotten."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from kerolox.broker.absent import SETTINGS, TOPIC_ATTRIBUTES
from kerolox.broker.options import BrokerOptions
from kerolox.errors import KeroloxError, NotThere
from kerolox.nameserver.options import NamesrvOptions
from kerolox.net.dialer import Dialer
from kerolox.net.tls import ClientAuth, ClientTls, TlsMode
from kerolox.options import change, load
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import INNER_BATCH
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.headers.topic import CreateTopicRequest
from kerolox.protocol.record import decode_records
from kerolox.testing.broker import running_broker
from tests.broker.talk import Talk, send_fields

# How an operator asks for what is not there.
ASKED = {
    "storeType": "defaultRocksDB", "configManagerVersion": "v2",
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
}  # fmt: skip


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_that_would_do_nothing_is_refused(key: str) -> None:
    value = ASKED.get(key, "true")
    with pytest.raises(NotThere) as refused:
        load(BrokerOptions, file_text=f"{key}={value}\n", file_name="broker.conf")
    text = str(refused.value)
    assert key in text
    assert value in text
    assert "broker.conf" in text
    assert SETTINGS[key].why in text
    with pytest.raises(NotThere):
        change(BrokerOptions(), {key: value})


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_that_asks_for_nothing_is_taken(key: str) -> None:
    """A file of RocketMQ that lists its own defaults starts."""
    value = SETTINGS[key].harmless[-1]
    load(BrokerOptions, file_text=f"{key}= {value.upper()} \n")
    change(BrokerOptions(), {key: value})


@pytest.mark.parametrize("line", ["aclEnable=true"])
def test_the_name_server_refuses_too(line: str) -> None:
    with pytest.raises(NotThere, match=line.partition("=")[0]):
        load(NamesrvOptions, file_text=line)


@pytest.mark.parametrize("where", ["file", "--set"])
def test_the_command_ends_with_one_line(tmp_path: Path, where: str) -> None:
    """An open broker that its operator believes guarded must not come up."""
    conf = tmp_path / "broker.conf"
    conf.write_text("aclEnable=true\n" if where == "file" else "")
    more = [] if where == "file" else ["--set", "aclEnable=true"]
    command = [sys.executable, "-m", "kerolox", "broker", "-c", str(conf), "--store", str(tmp_path / "s")]
    done = subprocess.run(
        [*command, "--listen", "127.0.0.1:0", *more],
        capture_output=True, text=True, timeout=60, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "plain_acl.yml: it does not exist" in "".join(done.stderr.split("\n"))
    assert "Traceback" not in done.stderr
    assert "ready" not in done.stdout


async def test_requests_are_refused(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        broker = running.broker

        async def remark(code: RequestCode, header: object = None, body: bytes = b"") -> str:
            answer = await dialer.call(running.address, code, header, body)  # type: ignore[arg-type]
            assert answer.code == ResponseCode.SYSTEM_ERROR
            return answer.remark or ""

        for name, value in (
            ("queue.type", "BatchCQ"), ("cleanup.policy", "COMPACTION"), ("message.type", "LITE"),
            ("message.type", "PRIORITY"), ("reserve.time", "168"), ("lite.topic.expiration", "60"),
        ):  # fmt: skip
            header = CreateTopicRequest(
                topic="t", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
                topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
                attributes=f"+{name}={value}",
            )  # fmt: skip
            assert TOPIC_ATTRIBUTES[name].why in await remark(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            assert broker.tables.topics.find("t") is None
        assert "enableDLegerCommitLog" in await remark(
            RequestCode.UPDATE_BROKER_CONFIG, None, b"fileReservedTime=5\nenableDLegerCommitLog=true\n"
        )
        assert broker.options.keep_hours == 72  # all or none
        group = GroupConfig(group_name="g", attributes={"+priority.factor": "7"})
        assert "priority.factor" in await remark(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group.encode()
        )
        assert "g" not in broker.membership.groups.table.groups


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
async def test_a_batch_in_one_record_is_refused_and_the_queue_goes_on(
    tmp_path: Path, code: RequestCode
) -> None:
    """It takes many offsets of a queue. Stored as one message, it would shut out as many that follow."""
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        await talk.send("t", b"before")
        header = SendRequestV2(**send_fields("t", {"INNER_NUM": "100"}, sys_flag=INNER_BATCH))
        body = encode_batch([(0, b"inner", b"")]) if code == RequestCode.SEND_BATCH_MESSAGE else b"inner"
        answer = await dialer.call(running.address, code, header, body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "BatchCQ" in (answer.remark or "")
        for number in range(3):
            assert (await talk.send("t", b"%d" % number)).code == 0
        got = await talk.pull("t")
        assert [message.body for message in decode_records(got.body)] == [b"before", b"0", b"1", b"2"]


async def test_what_a_store_from_elsewhere_asks_for_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(directory=tmp_path) as running:
        put = running.broker.tables.topics.put
        from kerolox.protocol.bodies.topics import TopicConfig

        put(TopicConfig(topic_name="kept", attributes={"cleanup.policy": "COMPACTION"}))
        put(TopicConfig(topic_name="plain", attributes={"cleanup.policy": "DELETE", "message.type": "FIFO"}))
        with caplog.at_level(logging.WARNING):
            await running.stop()
            await running.start()
    said = [r.getMessage() for r in caplog.records if "without_effect" in r.getMessage()]
    assert len(said) == 1
    assert "topic='kept' attribute='cleanup.policy' value='COMPACTION'" in said[0]


async def test_keys_of_the_black_list_are_not_changed(tmp_path: Path) -> None:
    settings = {"config_black_list": "configBlackList;fileReservedTime"}
    async with running_broker(directory=tmp_path, **settings) as running, Dialer() as dialer:
        code = RequestCode.UPDATE_BROKER_CONFIG
        answer = await dialer.call(running.address, code, None, b"fileReservedTime=1\n")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert running.broker.options.keep_hours == 72
        assert (await dialer.call(running.address, code, None, b"maxMessageSize=4096\n")).code == 0


async def test_a_broker_asks_for_certificates_when_told_to(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    ca, certificate, key = (str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    settings = {
        "tls_mode": TlsMode.ENFORCING, "tls_certificate": certificate, "tls_key": key, "tls_client_ca": ca,
        "tls_client_auth": ClientAuth.REQUIRE, "use_tls": False,
    }  # fmt: skip

    async def answered(tls: ClientTls, address: str) -> bool:
        async with Dialer(tls=tls) as dialer:
            try:
                answer = await dialer.call(address, RequestCode.GET_BROKER_CONFIG, None, timeout_s=10)
            except KeroloxError:
                return False
            return answer.code == 0

    async with running_broker(directory=tmp_path / "b", **settings) as running:
        host = running.address.rpartition(":")[0]
        for port in (running.broker.endpoints.port, running.broker.endpoints.vip_port):
            nobody, known = ClientTls(ca=ca), ClientTls(ca=ca, certificate=certificate, key=key)
            async with asyncio.timeout(60):
                assert not await answered(nobody, f"{host}:{port}")
                assert await answered(known, f"{host}:{port}")
