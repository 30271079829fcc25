"""Administration of a cluster: topics, groups, offsets, messages, dead letters, users and rules.

::

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=8)

Works with Apache's servers as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from kerolox.client.admin.calls import AdminCalls
from kerolox.client.admin.groups import GroupAdmin
from kerolox.client.admin.messages import MessageAdmin
from kerolox.client.admin.topics import TopicAdmin
from kerolox.client.admin.users import AccessAdmin
from kerolox.client.calls.signing import adds_no_fields
from kerolox.client.cluster.home import Home
from kerolox.client.cluster.signing import Signing
from kerolox.client.nameservers import NameServers
from kerolox.client.options import ClientOptions
from kerolox.errors import Closed, OptionError
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers


class Admin(TopicAdmin, GroupAdmin, MessageAdmin, AccessAdmin):
    """Administration of the cluster behind name servers."""

    def __init__(self, where: ClientOptions | str | Sequence[str] | None = None) -> None:
        self.options = where if isinstance(where, ClientOptions) else ClientOptions(where or "")
        if self.options.namespace:
            raise OptionError(
                "namespace", self.options.namespace, "none: Admin takes full names, such as NAMESPACE%TOPIC"
            )
        self._addresses = self.options.addresses()
        self._dialer: Dialer | None = None
        self._home: Home | None = None

    async def open(self) -> Self:
        """Open it in the current event loop. Connections are opened when they are first used."""
        if self._dialer is None:
            handlers = RemotingHandlers()
            if not adds_no_fields(self.options):
                handlers.hooks.append(Signing(self.options))
            self._home = Home()
            self._dialer = Dialer(
                handlers,
                connect_timeout_s=self.options.connect_timeout_s,
                tls=self.options.tls,
                encoding=self.options.encoding,
            )
            nameservers = NameServers(list(self._addresses), self._dialer, self.options.request_timeout_s)
            super().__init__(AdminCalls(nameservers, self._dialer, self.options.request_timeout_s))
        return self

    async def close(self) -> None:
        """Close the connections. It may be opened again."""
        dialer, home = self._dialer, self._home
        self._dialer = self._home = None
        if dialer is not None and home is not None and not home.in_parent:
            await dialer.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        return self._dialer is not None

    @property
    def _calls(self) -> AdminCalls:
        if self._dialer is None or self._home is None:
            raise Closed("this Admin is not open: use it in `async with`")
        self._home.check()
        return self._own_calls

    def __repr__(self) -> str:
        return f"<admin of {';'.join(self._addresses)} {'open' if self.is_open else 'closed'}>"
