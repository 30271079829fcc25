"""A name server and brokers, Apache's or ours, behind one face."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.rig.ports import free_ports

from ..conftest import Factory
from ..driver import JavaDriver
from ..ours import OurBroker, OurNameServer
from ..processes import JavaBroker, JavaNameServer

# The last is ours, too: a broker that is a DLedger group of one.
Kind = Literal["apache", "ours", "ledger"]
Broker = JavaBroker | OurBroker
OTHER: Mapping[Kind, Kind] = {"apache": "ours", "ours": "apache", "ledger": "apache"}

# A message of four megabytes has to fit into one file of the log.
COMMON = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 20_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    # Topics made on the way are the shared broker's.
    "autoCreateTopicEnable": False,
    # Shorter than the usual five seconds, for a story waits for it; not so short that a kill meets it.
    "flushConsumerOffsetInterval": 2000,
}


@dataclass(frozen=True)
class Certificate:
    """Files of a server's certificate, and of the authority that clients trust."""

    chain: Path
    key: Path
    authority: Path

    @classmethod
    def make(cls, folder: Path) -> Certificate:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        made = cls(folder / "server.pem", folder / "server.key", folder / "authority.pem")
        made.chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        # Java reads PKCS 8 only.
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        authority.cert_pem.write_to_path(str(made.authority))
        return made

    @property
    def server_settings(self) -> dict[str, str]:
        return {
            "tls.server.mode": "permissive",
            "tls.server.certPath": str(self.chain),
            "tls.server.keyPath": str(self.key),
        }

    @property
    def client_settings(self) -> dict[str, str]:
        """JVM properties of a client that speaks TLS and wants to see a good certificate."""
        return {
            "tls.enable": "true",
            "tls.test.mode.enable": "false",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": str(self.authority),
        }


def group_of_one(name: str) -> dict[str, object]:
    """Settings of a broker that is alone in its DLedger group."""
    return {
        "enableDLegerCommitLog": True,
        "dLegerGroup": name,
        "dLegerPeers": f"n0-127.0.0.1:{free_ports(1)[0]}",
        "dLegerSelfId": "n0",
    }


class Cluster:
    """One name server and one broker that all stories share; more brokers for those that need their own.

    Both servers take plain and TLS connections on one port.
    """

    def __init__(
        self,
        kind: Kind,
        java: Factory,
        home: Path,
        certificate: Certificate,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        self.kind = kind
        self.certificate = certificate
        self._java = java
        self._home = home
        self._numbers = itertools.count(1)
        self._made: list[JavaNameServer | OurNameServer | Broker] = []
        self.nameserver_process = self._new_nameserver()
        self.nameserver = self.nameserver_process.address
        self.broker = self.new_broker(
            "broker-a",
            properties=properties or {"autoCreateTopicEnable": True, "traceTopicEnable": True},
        )

    @property
    def is_apache_4(self) -> bool:
        """Some things only later brokers do."""
        return self.kind == "apache" and self._java.jars.is_4x

    def _folder(self, role: str) -> Path:
        return self._home / f"{role}-{next(self._numbers)}"

    def _java_tls(self) -> dict[str, Any]:
        return {
            "tls": True,
            "system": {**self.certificate.server_settings, "tls.test.mode.enable": "false"},
        }

    def _new_nameserver(self) -> JavaNameServer | OurNameServer:
        made: JavaNameServer | OurNameServer
        if self.kind == "apache":
            made = self._java.nameserver(start=False, **self._java_tls())
        else:
            home = self._folder("nameserver")
            home.mkdir(parents=True)
            config = home / "namesrv.conf"
            settings = {**self.certificate.server_settings, "kvConfigPath": home / "kvConfig.json"}
            config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            made = OurNameServer(home, options=["-c", str(config)])
        self._made.append(made)
        made.start()
        return made

    def new_broker(
        self,
        name: str,
        *,
        kind: Kind | None = None,
        cluster: str = "DefaultCluster",
        properties: Mapping[str, object] | None = None,
    ) -> Broker:
        """A started broker, registered at this cluster's name server."""
        made: Broker
        options = {**COMMON, **(properties or {})}
        if self.kind == "ledger":
            options |= group_of_one(name)
        if (kind or self.kind) == "apache":
            made = self._java.broker(
                self.nameserver, start=False, name=name, cluster=cluster, properties=options,
                **self._java_tls(),
            )  # fmt: skip
        else:
            made = OurBroker(
                self._folder(name),
                self.nameserver,
                name=name,
                cluster=cluster,
                properties={**self.certificate.server_settings, **options},
            )
        self._made.append(made)
        made.start()
        return made

    def create_topic(
        self, driver: JavaDriver, topic: str, queues: int = 4, *, broker: Broker | None = None
    ) -> str:
        driver.create_topic(self.nameserver, (broker or self.broker).address, topic, queues)
        return topic

    @property
    def count(self) -> int:
        """Servers made so far."""
        return len(self._made)

    def finish_since(self, count: int) -> None:
        """End those that were made after the first ``count``."""
        while len(self._made) > count:
            self._made.pop().finish()

    def finish(self) -> None:
        for process in reversed(self._made):
            process.finish()

    def __repr__(self) -> str:
        return f"<Cluster {self.kind} {self.nameserver}>"
