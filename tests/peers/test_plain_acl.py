"""Accounts of RocketMQ 4 (``plain_acl.yml``): its client and mqadmin, 4.9.7, at our broker and at its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData

from .conftest import Factory, available
from .driver import JavaDriver, JavaError
from .guarded import Keys
from .ours import OurBroker, OurNameServer
from .processes import JavaBroker
from .scenarios.client import Client, Producer, body, wait_until

Unique = Callable[[str], str]

ADMIN = Keys("the-admin", "may do all é€")
HELD = Keys("held-key", "to its permissions")
NOBODY = Keys("", "")
REFUSED = "org.apache.rocketmq.acl.common.AclException"
LEVELS = "1s 1s 1s 1s 1s"  # what fails comes again soon


class Accounts:
    """A broker with accounts, and RocketMQ 4's programs."""

    def __init__(self, driver: JavaDriver, nameserver: str, broker: OurBroker | JavaBroker) -> None:
        self.driver = driver
        self.nameserver = nameserver
        self.client = Client(driver, nameserver, "ours" if isinstance(broker, OurBroker) else "apache")
        self.broker = broker
        self.path = broker.home / "conf" / "plain_acl.yml"

    @property
    def is_ours(self) -> bool:
        return isinstance(self.broker, OurBroker)

    def mqadmin(self, *words: str, keys: Keys = ADMIN) -> str:
        """What it prints, or the error it ends with."""
        try:
            printed = self.driver.call("mqadmin", args=[*words], **keys.of_java)
            text = str(printed["out"] + printed["err"])
        except JavaError as error:
            text = error.stack
        return text.replace(self.broker.address, "<broker>")

    def at_broker(self, command: str, *words: str, keys: Keys = ADMIN) -> str:
        return self.mqadmin(command, "-n", self.nameserver, "-b", self.broker.address, *words, keys=keys)

    def let_in(self, keys: Keys, *words: str) -> None:
        said = self.at_broker("updateAclConfig", "-a", keys.access_key, "-s", keys.secret_key, *words)
        assert "create or update plain access config to <broker> success" in said, said

    def producer(self, keys: Keys) -> Producer:
        return self.client.producer("pid", options={"retryTimesWhenSendFailed": 0}, **keys.of_java)


@pytest.fixture(scope="module", params=["ours", "apache"])
def accounts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    jars = available("4x")
    home = tmp_path_factory.mktemp("accounts")
    factory = Factory(jars, home)
    nameserver = OurNameServer(home / "nameserver")
    nameserver.start()
    settings: dict[str, object] = {"aclEnable": True, "messageDelayLevel": LEVELS}
    broker: OurBroker | JavaBroker
    if request.param == "ours":
        broker = OurBroker(
            home / "broker", nameserver.address, properties={**settings, "rocketmqHome": home / "broker"}
        )
    else:
        broker = factory.broker(nameserver.address, start=False, properties=settings)
    write_first(broker.home / "conf" / "plain_acl.yml")
    try:
        broker.start()
        yield Accounts(factory.driver(), nameserver.address, broker)
    finally:
        broker.finish()
        factory.finish()
        nameserver.finish()


def write_first(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "globalWhiteRemoteAddresses:\n- 192.0.2.7\naccounts:\n"
        f"- accessKey: {ADMIN.access_key}\n  secretKey: {ADMIN.secret_key}\n  admin: true\n"
        f"- accessKey: {HELD.access_key}\n  secretKey: {HELD.secret_key}\n"
        "  topicPerms: [in=SUB, out=PUB, '%DLQ%others=SUB']\n  groupPerms: [mine=SUB]\n",
        encoding="utf-8",
    )


def test_messages_of_an_account(accounts: Accounts, unique: Unique) -> None:
    """Its topic and its group are open to it, with what fails and comes again, and nothing else is."""
    worker, topic, closed, group = Keys("worker-key", "0123456789"), *map(unique, ("open", "closed", "group"))
    for name in (topic, closed, f"%RETRY%{group}"):
        assert "success" in accounts.at_broker("updateTopic", "-t", name, "-r", "1", "-w", "1")
    accounts.let_in(worker, "-t", f"{topic}=PUB|SUB,{closed}=DENY", "-g", f"{group}=SUB", "-m", "false")
    producer = accounts.producer(worker)
    failures: list[str] = []

    def is_let_in() -> bool:  # Apache's broker looks at its file every five seconds
        try:
            return bool(producer.send(topic, "good"))
        except JavaError as error:
            failures[:] = [error.message]
            return False

    wait_until(is_let_in, f"the account counts {failures}", 20)
    producer.send(topic, "again")
    push = accounts.client.push(group, topic, body=True, outcome={"failTimes": 1}, **worker.of_java)
    push.wait(4, distinct=False)
    seen = sorted((body(record), record["reconsumeTimes"]) for record in push.drain())
    assert seen == [(b"again", 0), (b"again", 1), (b"good", 0), (b"good", 1)]
    push.stop()
    with pytest.raises(JavaError) as refused:
        producer.send(closed, "x")
    assert (refused.value.code, REFUSED in refused.value.stack) == (1, True)
    for stranger in (Keys(worker.access_key, "guessed it"), Keys("nobody-knows", worker.secret_key), NOBODY):
        with pytest.raises(JavaError) as refused:
            accounts.producer(stranger).send(topic, "x")
        assert (refused.value.code, REFUSED in refused.value.stack) == (1, True)
    assert REFUSED in accounts.at_broker("updateTopic", "-t", topic, "-r", "2", "-w", "2", keys=worker)
    assert REFUSED in accounts.at_broker("updateTopic", "-t", topic, "-r", "2", "-w", "2", keys=NOBODY)
    # What RocketMQ lets every account do.
    reset = ("resetOffsetByTime", "-n", accounts.nameserver, "-g", group, "-t", topic, "-s", "0")
    assert (REFUSED in accounts.mqadmin(*reset, keys=worker)) == accounts.is_ours


def test_tools_for_accounts(accounts: Accounts) -> None:
    key = "another-key"
    accounts.let_in(Keys(key, "0123456789"), "-i", "SUB", "-u", "SUB", "-w", "192.0.2.*", "-m", "false")
    text = accounts.path.read_text(encoding="utf-8")
    assert re.search(r"secretKey: ['\"]?0123456789\b", text), text
    assert re.search(r"whiteRemoteAddress: ['\"]?192\.0\.2\.\*", text), text
    versions = accounts.at_broker("clusterAclConfigVersion")
    assert "get broker's plain access config version success" in versions, versions
    by_cluster = accounts.mqadmin(
        "clusterAclConfigVersion", "-n", accounts.nameserver, "-c", "DefaultCluster"
    )
    row = re.search(
        rf"DefaultCluster +broker-a +<broker> +{re.escape(str(accounts.path))} +(\d+)", by_cluster
    )
    assert row is not None, by_cluster
    assert int(row[1]) >= 1
    said = accounts.at_broker("updateGlobalWhiteAddr", "-g", "192.0.2.8,192.0.2.9")
    assert "update global white remote addresses to <broker> success" in said, said
    assert "192.0.2.9" in accounts.path.read_text(encoding="utf-8")
    said = accounts.at_broker("deleteAclConfig", "-a", key)
    assert "delete plain access config account from <broker> success" in said, said
    assert key not in accounts.path.read_text(encoding="utf-8")
    assert "CODE: 209" in accounts.at_broker("updateAclConfig", "-a", "short", "-s", "0123456789")
    assert "CODE: 210" in accounts.at_broker("deleteAclConfig", "-a", key)
    if accounts.is_ours:  # 4.9.7 has it still
        told = accounts.mqadmin("getAclConfig", "-n", accounts.nameserver, "-c", "DefaultCluster")
        assert ADMIN.secret_key not in told
        assert "CODE: 3" in told, told


# --- decisions, request by request ------------------------------------------------------------------------


def _send(topic: str, group: str = "pid") -> dict[str, str]:
    return {
        "a": group, "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def _pull(topic: str, group: str) -> dict[str, str]:
    return {
        "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
    }  # fmt: skip


def _heartbeat(topic: str, group: str) -> bytes:
    wanted = SubscriptionData(topic=topic, sub_string="*")
    consumer = ConsumerData(group_name=group, subscription_data_set=(wanted,))
    return HeartbeatData(client_id="c@1", consumer_data_set=(consumer,)).encode()


def _offset(topic: str, group: str) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}


def _query(topic: str) -> dict[str, str]:
    return {"topic": topic, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}


_BACK = {"offset": "0", "delayLevel": "1", "unitMode": "false"}
_RESET = {"topic": "in", "group": "mine", "timestamp": "0", "isForce": "true"}

# What the account HELD asks for, and whether it is refused: by both, by ours alone, by RocketMQ alone.
BOTH, OURS, THEIRS, NEITHER = "both", "ours", "theirs", "neither"
CASES: dict[str, tuple[str, int, dict[str, str], bytes]] = {
    "send where it may": (NEITHER, 310, _send("out"), b"x"),
    "send where it reads": (BOTH, 310, _send("in"), b"x"),
    "send elsewhere": (BOTH, 310, _send("other"), b"x"),
    "send what was traced": (NEITHER, 310, _send("RMQ_SYS_TRACE_TOPIC"), b"x"),
    "send to its own retries, as consumers do": (
        THEIRS, 310, _send("%RETRY%mine", "CLIENT_INNER_PRODUCER"), b"x"
    ),
    "send to retries of others, as itself": (OURS, 310, _send("%RETRY%others", "mine"), b"x"),
    "send to retries of others": (BOTH, 310, _send("%RETRY%others", "others"), b"x"),
    "pull": (NEITHER, 11, _pull("in", "mine"), b""),
    "pull its retries": (NEITHER, 11, _pull("%RETRY%mine", "mine"), b""),
    "pull retries of others": (BOTH, 11, _pull("%RETRY%others", "mine"), b""),
    "pull dead letters that it may": (NEITHER, 11, _pull("%DLQ%others", "mine"), b""),
    "pull its dead letters": (BOTH, 11, _pull("%DLQ%mine", "mine"), b""),
    "pull where it sends": (BOTH, 11, _pull("out", "mine"), b""),
    "pull as others": (BOTH, 11, _pull("in", "others"), b""),
    "join": (NEITHER, 34, {}, _heartbeat("in", "mine")),
    "join others": (BOTH, 34, {}, _heartbeat("in", "others")),
    "join for another topic": (BOTH, 34, {}, _heartbeat("out", "mine")),
    "leave": (NEITHER, 35, {"clientID": "c@1", "consumerGroup": "mine"}, b""),
    "leave others": (BOTH, 35, {"clientID": "c@1", "consumerGroup": "others"}, b""),
    "leave as a producer": (NEITHER, 35, {"clientID": "c@1", "producerGroup": "pid"}, b""),
    "members": (NEITHER, 38, {"consumerGroup": "mine"}, b""),
    "members of others": (BOTH, 38, {"consumerGroup": "others"}, b""),
    "commit": (NEITHER, 15, _offset("in", "mine"), b""),
    "commit as others": (BOTH, 15, _offset("in", "others"), b""),
    "progress": (NEITHER, 14, _offset("in", "mine"), b""),
    "progress of others": (OURS, 14, _offset("in", "others"), b""),
    "send back for others": (BOTH, 36, {**_BACK, "group": "others"}, b""),
    "find by key": (NEITHER, 12, _query("in"), b""),
    "find by key where it sends": (BOTH, 12, _query("out"), b""),
    "reset": (OURS, 222, _RESET, b""),
    "options": (NEITHER, 26, {}, b""),
    "change options": (BOTH, 25, {}, b"nothing=1"),
    "figures": (NEITHER, 28, {}, b""),
    "delete what is unused": (OURS, 316, {}, b""),
    "delete a topic": (BOTH, 215, {"topic": "in"}, b""),
    "delete a group": (BOTH, 207, {"groupName": "mine"}, b""),
    "make an administrator": (
        OURS, 50, {"accessKey": "held-too", "secretKey": "0123456", "admin": "true"}, b""
    ),
    "versions of accounts": (OURS, 52, {}, b""),
    "let everybody in": (OURS, 53, {"globalWhiteAddrs": "192.0.2.1"}, b""),
}  # fmt: skip


async def test_decisions(accounts: Accounts) -> None:
    """As RocketMQ 4 decides; where it is open by a hole, the difference has its name here."""
    decided = {}
    async with Dialer(credentials=HELD.credentials) as dialer:
        for name, (_, code, fields, content) in CASES.items():
            peer = await dialer.connect(accounts.broker.address)
            answer = await peer.request(code, None, content, fields=fields)
            decided[name] = (answer.code == 1 and REFUSED in (answer.remark or ""), answer.remark)
    own = OURS if accounts.is_ours else THEIRS
    wrong = {
        name: (case[0], *decided[name])
        for name, case in CASES.items()
        if decided[name][0] != (case[0] in (BOTH, own))
    }
    assert not wrong
