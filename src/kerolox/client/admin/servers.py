"""Administration of single servers: settings at run time, draining, upkeep. Works with Apache's too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kerolox.client.admin.calls import AdminCalls
from kerolox.client.errors import NotFound
from kerolox.errors import KeroloxError, nearest
from kerolox.protocol.bodies.properties_text import read_properties, write_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.registration import (
    AddWritePermAnswer,
    AddWritePermRequest,
    WipeWritePermAnswer,
    WipeWritePermRequest,
)
from kerolox.protocol.headers.transaction import ResumeCheckRequest

ORDER_S = 30.0  # a broker may remove many files before it answers


class SettingsNotChanged(KeroloxError):
    """The server accepted a change of settings and did not make it."""

    def __init__(self, address: str, unchanged: Mapping[str, str | None], near: str = "") -> None:
        self.address = address
        self.unchanged = dict(unchanged)
        shown = ", ".join(
            f"{key} is not one of its settings" if value is None else f"{key} is still {value!r}"
            for key, value in unchanged.items()
        )
        super().__init__(
            f"the server at {address} answered success, but {shown}. A setting that cannot change at "
            f"run time goes into the server's file, with a restart.{near}"
        )


class AskServer(Protocol):
    """One request to a server; raises a kind of RequestFailed unless it succeeds."""

    async def __call__(
        self, address: str, code: int, *, body: bytes = b"", timeout_s: float | None = None
    ) -> Command: ...


async def read_settings(ask: AskServer, address: str, code: RequestCode) -> dict[str, str]:
    """Return the settings of a server, by RocketMQ's keys. ``code`` is GET_..._CONFIG of its kind."""
    return read_properties((await ask(address, code)).body)


async def change_settings(
    ask: AskServer, address: str, changes: Mapping[str, str], *, show: RequestCode, update: RequestCode
) -> None:
    """Change settings at run time and read them back, because servers ignore keys they do not know.

    Raises SettingsNotChanged.
    """
    await ask(address, update, body=write_properties(changes).encode(), timeout_s=ORDER_S)
    known = await read_settings(ask, address, show)
    unchanged = {key: known.get(key) for key, value in changes.items() if not _same(known.get(key), value)}
    if unchanged:
        raise SettingsNotChanged(address, unchanged, nearest(next(iter(unchanged)), known))


class Servers:
    """Administration of single brokers."""

    def __init__(self, admin: AdminCalls) -> None:
        self._admin = admin

    async def brokers(
        self, name: str | None = None, id: int | None = None, address: str | None = None
    ) -> dict[str, str]:
        """Return registered brokers as ``name:id`` → address: all, those of a name, or one.

        Raises NotFound.
        """
        if address is not None:
            return {address: address}
        found = {
            f"{one}:{number}": at
            for one, members in (await self.groups(name)).items()
            for number, at in members.items()
            if id is None or number == id
        }
        if not found:
            of = "no broker is registered" if name is None else f"broker {name} has no id {id}"
            raise NotFound(f"{of} at {'; '.join(self._admin.nameservers.addresses)}")
        return found

    async def groups(self, name: str | None = None) -> dict[str, dict[int, str]]:
        """Return registered brokers as name → id → address: all, or those of a name. Raises NotFound."""
        table = (await self._admin.cluster_info()).broker_addr_table
        if name is not None and name not in table:
            known = ", ".join(sorted(table)) or "none"
            raise NotFound(f"broker {name!r} is not registered. Registered: {known}.{nearest(name, table)}")
        wanted = sorted(table) if name is None else [name]
        return {one: dict(sorted(table[one].broker_addrs.items())) for one in wanted}

    async def drain(self, broker: str, *, writable: bool) -> dict[str, int]:
        """Remove or restore the write permission of a broker's topics in routes.

        Return the number of topics at each name server. Raises NotFound for a broker that none of them knows.
        """
        await self.brokers(broker)
        found: dict[str, int] = {}
        for nameserver in self._admin.nameservers.each():
            (address,) = nameserver.addresses
            if writable:
                header = AddWritePermRequest(broker_name=broker)
                answer = await nameserver.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
                found[address] = answer.header(AddWritePermAnswer).add_topic_count
            else:
                wipe = WipeWritePermRequest(broker_name=broker)
                answer = await nameserver.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, wipe)
                found[address] = answer.header(WipeWritePermAnswer).wipe_topic_count
        return found

    async def expire(self, address: str) -> None:
        """Order a broker to delete expired files of its log, and queue files without messages."""
        await self._admin.ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG, timeout_s=ORDER_S)
        await self._admin.ask(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, timeout_s=ORDER_S)

    async def resume_check(self, address: str, message_id: str, topic: str | None) -> None:
        """Order a broker to ask the producer again about a half message that it had given up."""
        header = ResumeCheckRequest(msg_id=message_id, topic=topic)
        await self._admin.ask(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)


def _same(found: str | None, wanted: str) -> bool:
    return found is not None and found.strip().lower() == wanted.strip().lower()
