"""Brokers that let in only whom they know, Apache's and ours, and the users they know.

RocketMQ 4.9 has accounts in a file; 5.x and ours have users and rules, changed by requests. Our name server
is guarded too, and reads the file of the broker; Apache's has no guard.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kerolox import ClientOptions
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.cluster.signing import Signing
from kerolox.client.nameservers import NameServers
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.signing import Credentials
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.frame import JSON
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.signature import sign

from .conftest import Factory
from .ours import OurBroker, OurNameServer
from .processes import JavaBroker, JavaNameServer
from .wire import GET_BROKER_CLUSTER_INFO, request

USERS_5X = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
ACLS_5X = "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"
CREATE_USER, CREATE_ACL, GET_ROUTE = 3001, 3006, 105
WAIT_S = 40.0


class Keys(NamedTuple):
    access_key: str
    secret_key: str

    @property
    def credentials(self) -> Credentials | None:
        return Credentials(*self) if self.access_key else None

    @property
    def of_java(self) -> dict[str, str]:
        """Arguments of the driver's operations."""
        return {"accessKey": self.access_key, "secretKey": self.secret_key} if self.access_key else {}


ADMIN = Keys("administrator", "may do all")
NOBODY = Keys("", "")

Rights = Mapping[str, Sequence[str]]  # resources and what may be done to each


class Guarded:
    """A broker with access control."""

    def __init__(
        self,
        nameserver: JavaNameServer | OurNameServer,
        broker: JavaBroker | OurBroker,
        *,
        has_accounts: bool,
    ) -> None:
        self.servers = (nameserver, broker)
        self.broker = broker
        self.has_accounts = has_accounts  # in a file, as 4.9 has
        self.users: dict[Keys, bool] = {}  # whether they may write

    @property
    def nameserver(self) -> str:
        return self.servers[0].address

    @property
    def is_ours(self) -> bool:
        return isinstance(self.broker, OurBroker)

    def finish(self) -> None:
        for server in reversed(self.servers):
            server.finish()

    # --- clients -------------------------------------------------------------------------------------

    def as_(self, keys: Keys, encoding: int = JSON) -> ClientOptions:
        return ClientOptions(
            self.nameserver, access_key=keys.access_key, secret_key=keys.secret_key, encoding=encoding
        )

    @asynccontextmanager
    async def admin(self, keys: Keys = ADMIN) -> AsyncIterator[AdminCalls]:
        handlers = RemotingHandlers()
        if keys.access_key:
            handlers.hooks.append(Signing(ClientOptions(**keys._asdict())))
        async with Dialer(handlers) as dialer:
            yield AdminCalls(NameServers([self.nameserver], dialer), dialer)

    async def create_topic(self, topic: str, queues: int = 1, keys: Keys = ADMIN) -> str:
        async with self.admin(keys) as admin:
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6)
            await admin.put_topic(self.broker.address, config)
            await until(lambda: self._is_known(admin, topic))
        return topic

    async def _is_known(self, admin: AdminCalls, topic: str) -> bool:
        try:
            return bool(await admin.queues(topic))
        except Exception:
            return False

    # --- users ---------------------------------------------------------------------------------------

    async def let_in(self, keys: Keys, *, writes: bool) -> None:
        """Add a user who may read everything, and perhaps write."""
        self.users[keys] = writes
        if self.has_accounts:
            self.write_accounts()  # a running broker notices within some seconds
            return
        topics = ["Sub", "Get", "Pub"] if writes else ["Sub", "Get"]
        await self.allow(keys, {"Topic:*": topics, "Group:*": ["Sub", "Get"]})

    def write_accounts(self) -> None:
        """The file of a 4.x broker."""
        accounts: list[dict[str, object]] = [
            {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key, "admin": True}
        ]
        for keys, writes in self.users.items():
            rights = {"defaultTopicPerm": "PUB|SUB" if writes else "SUB", "defaultGroupPerm": "SUB"}
            accounts.append({"accessKey": keys.access_key, "secretKey": keys.secret_key, **rights})
        text = json.dumps({"accounts": accounts})  # JSON is YAML
        path = self.broker.home / "conf" / "plain_acl.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    async def allow(self, keys: Keys, rights: Rights) -> None:
        """Make a user who may do this, as ``mqadmin`` makes one."""
        entries = [
            {"resource": resource, "actions": list(actions), "decision": "Allow"}
            for resource, actions in rights.items()
        ]
        user = {"username": keys.access_key, "password": keys.secret_key, "userType": "Normal"}
        subject = f"User:{keys.access_key}"
        acl = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
        async with Dialer(credentials=ADMIN.credentials) as dialer:
            peer = await dialer.connect(self.broker.address)
            for code, fields, body in (
                (CREATE_USER, {"username": keys.access_key}, user),
                (CREATE_ACL, {"subject": subject}, acl),
            ):
                answer = await peer.request(code, None, json.dumps(body).encode(), fields=fields)
                assert answer.code == 0, answer.remark
        if self.is_ours:
            await until(lambda: self._is_admitted(keys, next(iter(rights))))

    async def _is_admitted(self, keys: Keys, resource: str) -> bool:
        """Whether our name server has read the file since: it tells the user the way to what rules name, or
        that there is nothing."""
        kind, _, name = resource.replace("*", "any").partition(":")
        topic = name if kind == "Topic" else f"%RETRY%{name}"
        async with Dialer(credentials=keys.credentials) as dialer:
            answer = await dialer.call(self.nameserver, GET_ROUTE, RouteRequest(topic=topic))
            return answer.code != ResponseCode.NO_PERMISSION


async def until(condition: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            met = condition()
            if (await met) if asyncio.iscoroutine(met) else met:
                return
            await asyncio.sleep(0.05)


# --- servers --------------------------------------------------------------------------------------------


def settings() -> dict[str, object]:
    """Of a broker with users and rules."""
    return {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
        ),
    }


APACHES = {
    "authenticationMetadataProvider": USERS_5X,
    "authorizationMetadataProvider": ACLS_5X,
    # What tests ask without keys to make a young broker register at once: UPDATE_BROKER_CONFIG.
    "authenticationWhitelist": "25",
    "authorizationWhitelist": "25",
}


def apaches(java: Factory, properties: Mapping[str, object], users: Mapping[Keys, bool]) -> Guarded:
    """Apache's, of the version of this run; users are those it has from the start."""
    is_4x = java.jars.is_4x
    nameserver = java.nameserver()
    own = {"aclEnable": True} if is_4x else settings() | APACHES
    broker = java.broker(nameserver.address, start=False, properties={**properties, **own})
    guarded = Guarded(nameserver, broker, has_accounts=is_4x)
    if is_4x:
        guarded.users.update(users)
        guarded.write_accounts()
    broker.start()
    if not is_4x:
        for keys, writes in users.items():
            asyncio.run(guarded.let_in(keys, writes=writes))
    return guarded


class GuardedBroker(OurBroker):
    def registered(self) -> bool:
        shown = f'"{self.address}"'.encode()
        fields = dict(sign({}, b"", *ADMIN))
        try:
            answers = [request(server, GET_BROKER_CLUSTER_INFO, fields) for server in self.nameservers]
        except OSError:
            return False
        return all(shown in answer.body for answer in answers)


def ours(home: Path, properties: Mapping[str, object], users: Mapping[Keys, bool]) -> Guarded:
    """Ours, both servers guarded, with one file of users."""
    own = settings() | {"accessPath": home / "access.json"}
    home.mkdir(parents=True, exist_ok=True)
    conf = home / "namesrv.conf"
    text = {**own, "kvConfigPath": home / "kvConfig.json"}
    shown = {key: str(value).lower() if isinstance(value, bool) else value for key, value in text.items()}
    conf.write_text("".join(f"{key}={value}\n" for key, value in shown.items()), encoding="utf-8")
    nameserver = OurNameServer(home / "nameserver", options=["-c", str(conf)])
    nameserver.start()
    broker = GuardedBroker(home / "broker", nameserver.address, properties={**properties, **own})
    guarded = Guarded(nameserver, broker, has_accounts=False)
    try:
        broker.start()
        for keys, writes in users.items():
            asyncio.run(guarded.let_in(keys, writes=writes))
    except BaseException:
        guarded.finish()
        raise
    return guarded
