"""A carrier in a process of its own, which a test can stop: ``python -m tests.controller.etcd_child ENDPOINTS
GROUP LEASE_S``. It leads, says its token, and for every line it is sent it tries to commit."""

from __future__ import annotations

import asyncio
import sys

from kerolox.controller.carriers.carrier import NEW
from kerolox.controller.carriers.etcd import EtcdCarrier
from kerolox.controller.etcd_access import EtcdAccess, read_endpoints
from kerolox.errors import KeroloxError

from .carrier_kit import group


async def main(endpoints: str, name: str, lease_s: str) -> None:
    carrier = EtcdCarrier(EtcdAccess(read_endpoints(endpoints)), group=name, lease_s=int(lease_s))
    await carrier.open()
    token = await carrier.lead("child", "c:1")
    say(f"leads {token}")
    while await asyncio.to_thread(sys.stdin.readline):
        held = carrier.holds(token)
        try:
            told = f"committed {await carrier.commit(token, 'broker-a', NEW, group(epoch=99))}"
        except KeroloxError as error:
            told = f"{type(error).__name__} {error}"
        say(f"{held} {told}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
