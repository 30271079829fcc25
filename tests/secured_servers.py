"""A name server and a broker that take nothing but TLS, and nothing of strangers: in a thread, for clients of
all kinds, commands and Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from kerolox import ClientOptions, ClientTls
from kerolox.access.book import Book
from kerolox.access.book_file import save_book
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials
from kerolox.net.tls import ClientAuth, TlsMode
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.testing.access import ADMIN, INNER, secured
from kerolox.testing.broker import running_broker
from kerolox.testing.nameserver import running_nameserver

SECRET = "alices-0wn-s3cret"  # that no test may find anywhere
ALICE = Credentials("alice", SECRET)
# What alice may do: nothing but this.
RULES = {"Topic:secured*": ("Pub", "Sub", "Get"), "Group:alices*": ("Sub",)}
START_S = 60.0


@dataclass(frozen=True)
class SecuredServers:
    """Where the servers are, and what a client needs to be let in."""

    nameserver: str
    broker: str
    ca: str
    certificate: str  # of the servers, and good for clients too
    key: str
    loop: asyncio.AbstractEventLoop

    @property
    def tls(self) -> ClientTls:
        return ClientTls(ca=self.ca)

    def encrypted_key(self, password: bytes) -> str:
        """The key once more, under a password."""
        key = serialization.load_pem_private_key(Path(self.key).read_bytes(), None)
        path = Path(self.key).with_suffix(".encrypted")
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(password),
            )
        )
        return str(path)

    def options(self, user: Credentials = ALICE) -> ClientOptions:
        return ClientOptions(
            self.nameserver, access_key=user.access_key, secret_key=user.secret_key, tls=self.tls
        )

    def variables(self, user: Credentials = ALICE) -> dict[str, str]:
        """The same in the environment."""
        return {
            "NAMESRV_ADDR": self.nameserver,
            "KEROLOX_ACCESS_KEY": user.access_key,
            "KEROLOX_SECRET_KEY": user.secret_key,
            "KEROLOX_CLIENT_TLS": "on",
            "KEROLOX_CLIENT_TLS_CA": self.ca,
        }

    def create_topic(self, topic: str, queues: int = 1) -> None:
        """By the administrator."""

        async def create() -> None:
            own = ClientTls(ca=self.ca, certificate=self.certificate, key=self.key)
            async with Dialer(tls=own, credentials=ADMIN) as dialer:
                admin = AdminCalls(NameServers([self.nameserver], dialer), dialer)
                config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
                await admin.put_topic(self.broker, config)

        asyncio.run_coroutine_threadsafe(create(), self.loop).result(START_S)


def write_users(path: str) -> None:
    book = Book()
    for user in (ADMIN, INNER):
        book.ensure_super(user.access_key, user.secret_key)
    book.create_user(bodies.User(username=ALICE.access_key, password=ALICE.secret_key))
    entries = tuple(
        bodies.AclEntry(actions=actions, decision="Allow", resource=resource)
        for resource, actions in RULES.items()
    )
    subject = f"User:{ALICE.access_key}"
    book.merge_rules(subject, bodies.Acl(policies=(bodies.AclPolicy(entries=entries),), subject=subject))
    save_book(path, book)


@contextmanager
def secured_servers(folder: Path, client_auth: ClientAuth = ClientAuth.NONE) -> Iterator[SecuredServers]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca, certificate, key = (str(folder / name) for name in ("ca.pem", "server.pem", "server.key"))
    authority.cert_pem.write_to_path(ca)
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    users = str(folder / "access.json")
    write_users(users)
    settings = {
        "tls_mode": TlsMode.ENFORCING,
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_own_ca": ca,
        "tls_own_certificate": certificate,
        "tls_own_key": key,
        "tls_client_ca": ca,
        "tls_client_auth": client_auth,
        "access_path": users,
    }
    found: list[tuple[SecuredServers, asyncio.Event]] = []
    failed: list[BaseException] = []
    started = threading.Event()

    async def serve() -> None:
        ended = asyncio.Event()
        async with (
            running_nameserver(directory=folder, **secured(**settings)) as nameserver,
            running_broker(directory=folder, nameserver=nameserver, **secured(**settings)) as running,
        ):
            loop = asyncio.get_running_loop()
            made = SecuredServers(nameserver.address, running.address, ca, certificate, key, loop)
            found.append((made, ended))
            started.set()
            await ended.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="secured-servers", daemon=True)
    thread.start()
    started.wait(START_S)
    if failed:
        raise failed[0]
    servers, ended = found[0]
    try:
        yield servers
    finally:
        servers.loop.call_soon_threadsafe(ended.set)
        thread.join()
    if failed:
        raise failed[0]
