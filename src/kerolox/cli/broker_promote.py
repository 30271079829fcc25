"""``kerolox broker promote``"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, column, one_line_errors, output, row, table
from kerolox.errors import KeroloxError, OptionError

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.protocol.bodies.stats import HaStatus

EXAMPLE = "Example: kerolox broker promote --broker broker-a"

CHANGE_S = 60.0  # limit of the promotion: the broker asks its peers, reads its log and starts to deliver
SEEN_S = 10.0  # limit until name servers show the new leader


class LeaderRole(Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"


@row
class PromotedRow:
    """Promoted broker."""

    broker: str | None
    address: str
    role: str
    log_end: int | None = column("log ends at")
    registered: bool = column("registered as leader")


class NotPromoted(KeroloxError):
    """The follower was not promoted."""


@one_line_errors
def promote(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    broker: Annotated[
        str | None, typer.Option(help="Name of the broker whose follower to promote.", metavar="NAME")
    ] = None,
    id: Annotated[
        int | None, typer.Option(min=1, help="Id of the follower, if the broker has several.", metavar="ID")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", "-b", help="Address of the follower, instead of --broker.", metavar="HOST:PORT"
        ),
    ] = None,
    role: Annotated[
        LeaderRole,
        typer.Option(
            help="New role. A SYNC_MASTER without a follower answers sends with SLAVE_NOT_AVAILABLE."
        ),
    ] = LeaderRole.ASYNC_MASTER,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Promote even if messages are lost.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Promote a follower to leader after its leader is permanently lost.

    Fails while a leader is alive, and if messages would be lost.
    """
    if (broker is None) == (address is None):
        raise OptionError("--broker", broker, "either a name, or --address of the follower")

    async def work(admin: AdminCalls) -> PromotedRow:
        at = address or await _follower(admin, broker or "", id)
        before = await admin.ha_status(at)
        _check(at, before, role)
        await _change(admin, at, role, accept_loss)
        return await _after(admin, at, role)

    found = run_admin(nameserver, work)
    output(json).show(found, table(PromotedRow, [found]))


async def _follower(admin: AdminCalls, name: str, id: int | None) -> str:
    from kerolox.client.admin.servers import Servers
    from kerolox.client.errors import NotFound

    members = (await Servers(admin).groups(name))[name]
    followers = {one: at for one, at in members.items() if one != 0}
    shown = ", ".join(f"{one} at {at}" for one, at in followers.items()) or "none"
    if id is not None and id not in followers:
        raise NotFound(f"broker {name} has no follower {id}. Registered: {shown}")
    if id is None and len(followers) != 1:
        what = "has several followers: choose one with --id" if followers else "has no registered follower"
        raise NotFound(f"broker {name} {what}. Registered: {shown}")
    return followers[id if id is not None else next(iter(followers))]


def _check(address: str, status: HaStatus | None, role: LeaderRole) -> None:
    if status is None or (not status.master and status.ha_client_runtime_info.link_state is None):
        raise NotPromoted(
            f"the follower at {address} is Apache's, which cannot change its role while it runs. Promote it "
            "manually: make sure that its leader is stopped, and that no other follower has a larger "
            "commitLogMaxOffset (mqadmin brokerStatus -b ADDRESS); stop the follower; set "
            f"brokerRole={role.value} and brokerId=0 in its broker.conf; start it. Empty the old leader's "
            "store before that broker returns as a follower"
        )
    if status.master:
        raise NotPromoted(f"the broker at {address} is the leader already; its log ends at {_end(status)}")


async def _change(admin: AdminCalls, address: str, role: LeaderRole, accept_loss: bool) -> None:
    from kerolox.errors import RequestFailed
    from kerolox.protocol.bodies.properties_text import write_properties
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.admin import UpdateBrokerConfigRequest

    settings = write_properties({"brokerRole": role.value, "brokerId": "0"})
    header = UpdateBrokerConfigRequest(accept_loss=accept_loss or None)
    try:
        await admin.ask(
            address, RequestCode.UPDATE_BROKER_CONFIG, header, settings.encode(), timeout_s=CHANGE_S
        )
    except RequestFailed as error:
        raise NotPromoted(f"{address}: {error.remark}") from error


async def _after(admin: AdminCalls, address: str, role: LeaderRole) -> PromotedRow:
    """Return the outcome of a promotion, after waiting until name servers show the new leader."""
    import asyncio

    name = None
    try:
        async with asyncio.timeout(SEEN_S):
            while name is None:
                table = (await admin.cluster_info()).broker_addr_table
                name = next((one for one in table if table[one].broker_addrs.get(0) == address), None)
                if name is None:
                    await asyncio.sleep(0.1)
    except (KeroloxError, TimeoutError):
        pass  # the row below reports it: registered is False
    status = await admin.ha_status(address)
    end = None if status is None else _end(status)
    return PromotedRow(name, address, role.value, end, name is not None)


def _end(status: HaStatus) -> int:
    return status.master_commit_log_max_offset
