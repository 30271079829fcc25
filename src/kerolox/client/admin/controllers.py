"""Administration of controllers: their leader and its broker groups. Works with Apache's controllers, too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kerolox.client.admin.servers import change_settings, read_settings
from kerolox.client.errors import NotFound, failure
from kerolox.errors import KeroloxError, RequestFailed, nearest
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo, encode_broker_names
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers import controller as headers

ASK_S = 3.0


class NoLeader(KeroloxError):
    """The controllers have no leader."""

    retriable = True


class NamesNeeded(KeroloxError):
    """Apache's controllers do not list their broker names."""

    def __init__(self, leader: str) -> None:
        super().__init__(
            f"the controller at {leader} is Apache's, which answers only for given names. Give --broker "
            "NAME, or -n HOST:PORT of a name server with the names of all brokers"
        )


class SeenController(NamedTuple):
    """Controller with its answer to a survey."""

    id: str | None
    address: str
    leads: bool | None  # None: no answer
    error: str | None


class SeenControllers(NamedTuple):
    """Controllers of a group."""

    group: str | None
    leader: str | None  # address
    members: list[SeenController]


class Controllers:
    """Requests to the leading controller of a group."""

    def __init__(self, dialer: Dialer, addresses: Sequence[str]) -> None:
        self._dialer = dialer
        self._addresses = list(dict.fromkeys(addresses))

    async def survey(self) -> SeenControllers:
        """Ask the given controllers and all their peers, and return what each reports."""
        replies = await self._ask_all(self._addresses)
        peers = _peers(_answers(replies))
        replies |= await self._ask_all([address for address in peers.values() if address not in replies])
        answers = _answers(replies)
        if not answers:
            raise next(error for error in replies.values() if isinstance(error, KeroloxError))
        ids = {address: id for id, address in peers.items()}
        # A controller that answered is among the peers, possibly under another address.
        shown = [at for at in replies if at in ids or not ids or isinstance(replies[at], KeroloxError)]
        members = [
            _seen(ids.get(at), at, replies[at]) for at in sorted(shown, key=lambda at: ids.get(at, ""))
        ]
        # The controller that reports itself as leader, else the one reported by others.
        leader = next((at for at, answer in replies.items() if _leads(answer)), None)
        named = (answer.controller_leader_address for answer in answers)
        return SeenControllers(answers[0].group, leader or next(filter(None, named), None), members)

    async def leader(self) -> str:
        """Return the address of the leading controller. Raises NoLeader."""
        seen = await self.survey()
        if seen.leader is None:
            which = ", ".join(member.address for member in seen.members)
            raise NoLeader(
                f"none of the controllers {which} is the leader. A leader needs more than half of the "
                "controllers, or of etcd's members. Retry in a few seconds"
            )
        return seen.leader

    async def groups(self, leader: str, names: Collection[str] | None) -> dict[str, ReplicasInfo]:
        """Return the broker groups of the given names, without unknown ones.

        ``names`` None: all groups, which Apache's controllers cannot list; raises NamesNeeded then.
        """
        header = headers.SyncStateDataRequest(all_groups=True) if names is None else None
        try:
            answer = await self._ask(
                leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, header, encode_broker_names(names or ())
            )
        except RequestFailed as error:
            if names is None and error.response_code == ResponseCode.SYSTEM_ERROR:
                raise NamesNeeded(leader) from error
            raise
        return dict(sorted(BrokerReplicasInfo.decode(answer.body).replicas_info_table.items()))

    async def group(self, leader: str, name: str, ids: Collection[int] = ()) -> ReplicasInfo:
        """Return the broker group of a name. Raises NotFound if it, or one of the replicas, is unknown."""
        found = (await self.groups(leader, [name])).get(name)
        if found is None:
            known = ""
            with contextlib.suppress(NamesNeeded):
                if others := await self.groups(leader, None):
                    known = f". Known: {', '.join(others)}.{nearest(name, others)}"
            raise NotFound(f"the controller at {leader} knows no broker {name!r}{known}")
        there = sorted(one.broker_id for one in found.in_sync_replicas + found.not_in_sync_replicas)
        missing = sorted(set(ids) - set(there))
        if missing:
            raise NotFound(
                f"broker {name} has no replica {', '.join(map(str, missing))}; there are: "
                f"{', '.join(map(str, there))}"
            )
        return found

    async def elect(
        self, leader: str, name: str, id: int, *, accepted_loss: int | None = None
    ) -> headers.ElectMasterAnswer:
        """Elect a replica as master.

        ``accepted_loss``: number of confirmed bytes that the replica may lack and that are then lost.
        Apache's controllers ignore it.
        """
        header = headers.ElectMasterRequest(
            broker_name=name, broker_id=id, designate_elect=True, accepted_loss=accepted_loss
        )
        answer = await self._ask(leader, RequestCode.CONTROLLER_ELECT_MASTER, header)
        return answer.header(headers.ElectMasterAnswer)

    async def clean(self, leader: str, name: str, ids: Collection[int], even_living: bool) -> None:
        header = headers.CleanBrokerDataRequest(
            broker_name=name,
            broker_controller_ids_to_clean=";".join(map(str, sorted(ids))) or None,
            is_clean_living_broker=even_living,
        )
        await self._ask(leader, RequestCode.CLEAN_BROKER_DATA, header)

    async def settings(self, address: str) -> dict[str, str]:
        """Return the settings of one controller, by RocketMQ's keys."""
        return await read_settings(self._ask, address, RequestCode.GET_CONTROLLER_CONFIG)

    async def change(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of one controller at run time. Raises SettingsNotChanged."""
        show, update = RequestCode.GET_CONTROLLER_CONFIG, RequestCode.UPDATE_CONTROLLER_CONFIG
        await change_settings(self._ask, address, changes, show=show, update=update)

    async def _ask_all(
        self, addresses: Collection[str]
    ) -> dict[str, headers.ControllerMetadataAnswer | KeroloxError]:
        answers = await asyncio.gather(*(self._look(address) for address in addresses))
        return dict(zip(addresses, answers, strict=True))

    async def _look(self, address: str) -> headers.ControllerMetadataAnswer | KeroloxError:
        try:
            answer = await self._ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            return answer.header(headers.ControllerMetadataAnswer)
        except KeroloxError as error:
            return error

    async def _ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Command:
        answer = await self._dialer.call(address, code, header, body, timeout_s=timeout_s or ASK_S)
        if answer.code != ResponseCode.SUCCESS:
            raise failure(answer, address=address, code=code)
        return answer


def is_master_already(error: RequestFailed) -> bool:
    return error.response_code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST


def _answers(
    replies: dict[str, headers.ControllerMetadataAnswer | KeroloxError],
) -> list[headers.ControllerMetadataAnswer]:
    return [answer for answer in replies.values() if not isinstance(answer, KeroloxError)]


def _seen(
    id: str | None, address: str, answer: headers.ControllerMetadataAnswer | KeroloxError
) -> SeenController:
    if isinstance(answer, KeroloxError):
        return SeenController(id, address, None, str(answer))
    return SeenController(id, address, answer.is_leader, None)


def _leads(answer: headers.ControllerMetadataAnswer | KeroloxError) -> bool:
    return not isinstance(answer, KeroloxError) and answer.is_leader


def _peers(answers: Sequence[headers.ControllerMetadataAnswer]) -> dict[str, str]:
    """Parse ``n0:10.0.0.1:9878;`` into id → address.

    JRaft controllers send no ids, only the addresses of their Raft log, which do not serve requests; these
    are skipped.
    """
    found: dict[str, str] = {}
    for answer in answers:
        for entry in (answer.peers or "").split(";"):
            id, _, address = entry.partition(":")
            if ":" in address:
                found[id] = address
    return found
