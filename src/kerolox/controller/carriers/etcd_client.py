"""Client for an etcd cluster: it uses any member, and the next one if that fails.

Messages and stubs are from the package aetcd (``pip install 'kerolox[etcd]'``). aetcd's own client supports
one member without TLS and fails for good when that member is gone; so connections are made here.

The result of a transaction may stay unknown, because the member stopped or the answer was lost. That is a
separate error, and such a transaction is never repeated here. All other requests may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from kerolox.controller.etcd_access import EtcdAccess
from kerolox.errors import KeroloxError, OptionError, sentences

try:
    import grpc
    from aetcd import rpc as rpc
except ImportError as missing:
    raise OptionError(
        "controllerCarrier",
        "etcd",
        f"embedded, or the packages that speak to etcd: pip install 'kerolox[etcd]' ({missing})",
    ) from missing

log = logging.getLogger(__name__)

CALL_S = 2.5  # per answer; brokers wait 3 seconds for the controller's
CONNECT_S = 1.0
MESSAGE_BYTES_MAX = 32 << 20

_CHANNEL = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
# With this metadata a member that has lost its cluster ends a stream instead of staying silent.
_WITH_LEADER = ("hasleader", "true")
# Status codes that guarantee that nothing was carried out.
_NOT_DONE = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

T = TypeVar("T")


class EtcdUnreachable(KeroloxError):
    """No member answered. Nothing was changed."""

    retriable = True
    next_step = "check that more than half of etcd's members run and can be reached from here"

    def __init__(self, endpoints: str, why: str) -> None:
        super().__init__(sentences(f"etcd at {endpoints} did not answer: {why}", self.next_step))


class EtcdRefused(KeroloxError):
    """etcd rejected the request. Nothing was changed."""

    next_step = "check etcd's log, its space (etcdctl endpoint status, alarm list), and the user's rights"

    def __init__(self, endpoint: str, why: str) -> None:
        super().__init__(sentences(f"etcd at {endpoint} refused: {why}", self.next_step))


class EtcdUnsure(KeroloxError):
    """The result of a transaction is unknown."""

    retriable = True

    def __init__(self, endpoint: str, why: str) -> None:
        super().__init__(
            f"etcd at {endpoint} did not confirm the change: {why}. It may have been made; try again."
        )


class _Member:
    """One member of the cluster and its connection, which is opened when needed."""

    def __init__(self, address: str, channel: Any) -> None:
        self.address = address
        self.channel = channel
        self.kv = rpc.KVStub(channel)
        self.lease = rpc.LeaseStub(channel)
        self.watch = rpc.WatchStub(channel)
        self.auth = rpc.AuthStub(channel)
        self.token: str | None = None

    async def connect(self) -> None:
        """Connect. Raises TimeoutError or ConnectionError: then nothing was sent."""
        async with asyncio.timeout(CONNECT_S):
            state = self.channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                    raise ConnectionError("no connection")
                await self.channel.wait_for_state_change(state)
                state = self.channel.get_state(try_to_connect=True)


class EtcdClient:
    """A session with the cluster."""

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._members: list[_Member] = []
        self._at = 0

    async def open(self) -> None:
        credentials = None
        if any(tls for _, tls in self._access.endpoints):
            credentials = await asyncio.to_thread(_credentials, self._access)
        for address, tls in self._access.endpoints:
            channel = (
                rpc.secure_channel(address, credentials, options=_CHANNEL)
                if tls
                else rpc.insecure_channel(address, options=_CHANNEL)
            )
            self._members.append(_Member(address, channel))

    async def close(self) -> None:
        members, self._members = self._members, []
        for member in members:
            await member.channel.close()

    async def range(self, request: Any) -> Any:
        return await self._ask(lambda at, told: at.kv.Range(request, timeout=CALL_S, metadata=told))

    async def change(self, request: Any) -> Any:
        """Run one transaction. Raises EtcdUnsure if it may have been, or may still be, carried out."""
        return await self._ask(
            lambda at, told: at.kv.Txn(request, timeout=CALL_S, metadata=told), is_change=True
        )

    async def grant(self, seconds: int) -> Any:
        request = rpc.LeaseGrantRequest(TTL=seconds)
        return await self._ask(lambda at, told: at.lease.LeaseGrant(request, timeout=CALL_S, metadata=told))

    async def renew(self, lease: int, timeout_s: float) -> int:
        """Renew a lease at one member. Return its remaining seconds; 0 if it has expired."""

        async def once(at: _Member, told: Any) -> int:
            request = rpc.LeaseKeepAliveRequest(ID=lease)
            call = at.lease.LeaseKeepAlive(
                _alone(request), timeout=timeout_s, metadata=(*(told or ()), _WITH_LEADER)
            )
            async for reply in call:
                return int(reply.TTL)
            return 0

        return await self._ask(once, tries=1)

    async def revoke(self, lease: int) -> None:
        """Revoke a lease and so delete all keys that have it."""
        request = rpc.LeaseRevokeRequest(ID=lease)
        with contextlib.suppress(EtcdRefused):  # it has expired already
            await self._ask(lambda at, told: at.lease.LeaseRevoke(request, timeout=CALL_S, metadata=told))

    async def watch(self, key: bytes, revision: int, within_s: float) -> AsyncGenerator[Any, None]:
        """Yield the events of a key from this revision on. Ends without an error after `within_s`: a member
        that hangs is silent, and the caller's next request finds another member."""
        member = self._members[self._at]
        call = member.watch.Watch(metadata=(*(self._told(member) or ()), _WITH_LEADER))
        request = rpc.WatchRequest(
            create_request=rpc.WatchCreateRequest(key=key, start_revision=revision, prev_kv=False)
        )
        ends_s = asyncio.get_running_loop().time() + within_s
        try:
            async with asyncio.timeout_at(ends_s):
                await call.write(request)
            while True:
                async with asyncio.timeout_at(ends_s):
                    response = await call.read()
                if response is grpc.aio.EOF or response.canceled or response.compact_revision:
                    return
                for event in response.events:
                    yield event
        except TimeoutError:
            return
        except grpc.aio.AioRpcError as error:
            self._next(member, _why(error))
        finally:
            call.cancel()

    # --- requests -------------------------------------------------------------------------------

    async def _ask(
        self,
        call: Callable[[_Member, Any], Awaitable[T]],
        *,
        tries: int | None = None,
        is_change: bool = False,
    ) -> T:
        why = "it was closed"
        for _ in range(tries or len(self._members)):
            if not self._members:
                break
            member = self._members[self._at]
            try:
                await member.connect()
                await self._log_in(member)
                return await self._call(member, call)
            except grpc.aio.AioRpcError as error:
                why = f"{member.address}: {_why(error)}"
                if error.code() in _NOT_DONE:
                    raise EtcdRefused(member.address, _why(error)) from error
                self._next(member, why)
                if is_change:
                    raise EtcdUnsure(member.address, _why(error)) from error
            except (TimeoutError, ConnectionError, grpc.aio.UsageError) as error:
                why = f"{member.address}: {str(error) or 'no connection in time'}"
                self._next(member, why)
        raise EtcdUnreachable(self._access.text, why)

    async def _call(self, member: _Member, call: Callable[[_Member, Any], Awaitable[T]]) -> T:
        try:
            return await call(member, self._told(member))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED or member.token is None:
                raise
            # The token has expired. The request was rejected before it was processed.
            member.token = None
            await self._log_in(member)
            return await call(member, self._told(member))

    async def _log_in(self, member: _Member) -> None:
        if self._access.user is None or member.token is not None:
            return
        request = rpc.AuthenticateRequest(name=self._access.user, password=self._access.password or "")
        try:
            member.token = (await member.auth.Authenticate(request, timeout=CALL_S)).token
        except grpc.aio.AioRpcError as error:
            if error.code() in _NOT_DONE:
                raise
            raise ConnectionError(_why(error)) from error  # nothing was sent after it

    def _told(self, member: _Member) -> tuple[tuple[str, str], ...] | None:
        return None if member.token is None else (("token", member.token),)

    def _next(self, failed: _Member, why: str) -> None:
        """Use another member from now on."""
        if self._members and self._members[self._at] is failed:
            self._at = (self._at + 1) % len(self._members)
            log.debug("etcd_member_left why=%r next=%s", why, self._members[self._at].address)


async def _alone(request: Any) -> AsyncIterator[Any]:
    yield request


def _credentials(access: EtcdAccess) -> Any:
    def of(path: str | None, key: str) -> bytes | None:
        try:
            return None if path is None else Path(path).read_bytes()
        except OSError as error:
            raise OptionError(key, path, f"a PEM file ({error})") from error

    return grpc.ssl_channel_credentials(
        root_certificates=of(access.ca, "etcdTrustCertPath"),
        private_key=of(access.key, "etcdKeyPath"),
        certificate_chain=of(access.certificate, "etcdCertPath"),
    )


def _why(error: Any) -> str:
    return f"{error.code().name} {error.details() or ''}".strip()
