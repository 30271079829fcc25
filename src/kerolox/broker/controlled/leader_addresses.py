"""Question for the replication address of the leader, which the leader itself answers.

The controller knows the address for clients. The leader knows the other one as soon as it leads.
"""

from __future__ import annotations

from kerolox.broker.role.value import LeaderAddress
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.replication import HaInfo

ASK_S = 3.0


async def ask_leader(dialer: Dialer, address: str) -> LeaderAddress | str:
    """Return the addresses of the leader, or the reason why they are unknown."""
    try:
        answer = await dialer.call(address, RequestCode.EXCHANGE_BROKER_HA_INFO, HaInfo(), timeout_s=ASK_S)
        header = answer.header(HaInfo) if answer.code == 0 else HaInfo()
    except KeroloxError as error:
        return str(error)
    if not header.master_ha_address:
        return answer.remark or "it does not lead yet"
    return LeaderAddress(address, header.master_ha_address)
