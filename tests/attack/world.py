"""The servers that are attacked: a broker under a controller and a name server, each with the same users; and
what they know, so that a change of it shows."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kerolox.access.book import Book
from kerolox.access.book_file import save_book
from kerolox.broker.broker import Broker
from kerolox.client.messages import Message
from kerolox.client.options import ClientOptions
from kerolox.client.send.producer import Producer
from kerolox.controller.controller import Controller
from kerolox.front.handlers import Handlers
from kerolox.nameserver.server import NameServer
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.reserved import TEMPLATE_TOPIC
from kerolox.testing.access import ADMIN, INNER, secured
from kerolox.testing.broker import running_broker
from kerolox.testing.controller import running_controller
from kerolox.testing.nameserver import running_nameserver

from .requests import Names

VICTIM = Names("victims", "victims-group", "victim")
NOBODY = Names("missing", "missing-group", "absent")  # as long, and not there
SECRET = b"what only the victim may read"

# Users that attack, and their rules. Each may do something, and none of them anything to the victim.
USERS: Mapping[str, list[tuple[str, tuple[str, ...]]]] = {
    "mallory": [],
    "other": [("Topic:other", ()), ("Group:other", ())],
    "retries": [
        ("Topic:%RETRY%victims-group", ()), ("Topic:%DLQ%victims-group", ()),
        ("Topic:%RETRY%missing-group", ()), ("Topic:%DLQ%missing-group", ()),
    ],
    "elsewhere": [("*", ("10.9.9.9",)), ("Topic:*", ("10.9.9.0/24",)), ("Group:*", ("10.9.9.9",))],
    "denied": [("Topic:*", ()), ("Group:*", ())],
    "disabled": [("*", ())],
}  # fmt: skip
NEAR = ipaddress.IPv4Network("127.0.0.0/9")  # from where these servers are administered
FAR = ipaddress.IPv4Network("127.128.0.0/9")
ELECTED_S = 30.0
PASSWORD = "a password of theirs"


@dataclass(frozen=True)
class Listener:
    """One port, and the table of what it serves."""

    name: str
    address: str
    handlers: Handlers


@dataclass(frozen=True)
class World:
    broker: Broker
    nameserver: NameServer
    controller: Controller

    def listeners(self) -> list[Listener]:
        ports = self.broker.ports
        nameserver, controller = self.nameserver._server, self.controller._server
        assert nameserver is not None
        assert controller is not None
        return [
            Listener("broker", ports.server.address, ports.handlers),
            Listener("broker's second port", ports.vip_server.address, ports.vip_handlers),
            Listener("name server", self.nameserver.address, nameserver.handlers),
            Listener("controller", self.controller.address, controller.handlers),
        ]

    @property
    def followers_address(self) -> str:
        return f"127.0.0.1:{self.broker.ports.followers.port}"

    def known(self) -> dict[str, str]:
        """Everything that a request could change, part by part."""
        broker, nameserver, controller = self.broker, self.nameserver, self.controller
        tables = broker.tables
        routes = nameserver.routes
        parts: dict[str, object] = {
            "log": broker.store.log.max_offset,
            "topics": sorted(tables.topics.table.topics.items()),
            "groups": sorted(tables.groups.groups.items()),
            "offsets": tables.offsets.encode(),
            "modes": tables.modes.modes,
            "members": sorted(broker.membership.members.consumers),
            "broker's options": dataclasses.asdict(broker.options),
            "broker's users": (broker.access.book.users, broker.access.book.policies),
            "passwords": [user.password for user in broker.access.book.users.values()],
            "role": (broker.leadership.leads, broker.leadership.id),
            "routes": [routes.clusters, sorted(routes.topics), sorted(routes.groups)],
            "key-values": nameserver.kv._tables,
            "name server's options": dataclasses.asdict(nameserver.options),
            # Leaders report how far their logs are confirmed, whoever asks what.
            "elections": [
                msgspec.structs.replace(group, confirmed=0) for group in controller.groups.values()
            ],
            "controller's options": dataclasses.asdict(controller.options),
        }
        return {part: hashlib.sha1(repr(value).encode()).hexdigest() for part, value in parts.items()}


@asynccontextmanager
async def running_world(place: Path, **more: str) -> AsyncIterator[World]:
    """``more`` are options of the broker."""
    path = str(place / "access.json")
    save_book(path, users())
    options = secured(access_path=path, admin_from=str(NEAR))
    async with (
        running_nameserver(directory=place / "nameserver", **options) as nameserver,
        running_controller(directory=place / "controller", **options) as controller,
        running_broker(
            directory=place / "broker",
            nameserver=nameserver,
            controlled=True,
            controllers=controller.address,
            grpcListen="127.0.0.1:0",
            **(options | more),
        ) as running,
    ):
        async with asyncio.timeout(ELECTED_S):  # and known to the name server
            while TEMPLATE_TOPIC not in nameserver.routes.topics:  # noqa: ASYNC110 — nobody would tell
                await asyncio.sleep(0.01)
        await fill(running.nameserver_address)
        yield World(running.broker, nameserver, controller)


def users() -> Book:
    book = Book()
    book.ensure_super(ADMIN.access_key, ADMIN.secret_key)
    book.ensure_super(INNER.access_key, INNER.secret_key)
    book.create_user(bodies.User(username=VICTIM.user, password="the victim's secret"))
    for name, rules in USERS.items():
        status = "disable" if name == "disabled" else "enable"
        book.create_user(bodies.User(username=name, password=PASSWORD, user_status=status))
        decision = "Deny" if name == "denied" else "Allow"
        entries = tuple(
            bodies.AclEntry(
                actions=("All",), decision=decision, resource=resource, source_ips=sources or None
            )
            for resource, sources in rules
        )
        if entries:
            policies = (bodies.AclPolicy(entries=entries, policy_type="Custom"),)
            book.merge_rules(f"User:{name}", bodies.Acl(policies=policies))
    return book


async def fill(nameserver: str) -> None:
    """The victim's topic, message and group."""
    options = ClientOptions(nameserver, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key)
    async with Producer(options, group="filling") as producer:
        await producer.send(Message(VICTIM.topic, SECRET, keys=["secret"]))
