"""Test tools for code that uses kerolox: real servers on free ports, movable time, a bad network.

::

    async with running_broker() as broker:              # in this process and event loop
        async with Producer(broker.nameserver_address, group="shop") as producer: ...
    with broker_in_thread() as broker: ...              # for code without await
    with broker_process() as broker: broker.kill()      # a separate process that can be killed
    async with running_cluster(brokers=2, followers=1) as cluster: await cluster.kill("broker-a")
    async with running_controlled(brokers=3) as group: await group.kill(1)  # another broker is elected
    async with unreliable_network(broker.nameserver_address) as network: network.cut()

With pytest there is a fixture: a test with the argument ``kerolox_broker`` gets a broker. See
:mod:`kerolox.testing.pytest_plugin`. The names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerolox.testing.broker import RunningBroker as RunningBroker
    from kerolox.testing.broker import running_broker as running_broker
    from kerolox.testing.clock import ManualClock as ManualClock
    from kerolox.testing.cluster import FollowerLink as FollowerLink
    from kerolox.testing.cluster import NotCaughtUp as NotCaughtUp
    from kerolox.testing.cluster import RunningCluster as RunningCluster
    from kerolox.testing.cluster import running_cluster as running_cluster
    from kerolox.testing.controlled import RunningControlled as RunningControlled
    from kerolox.testing.controlled import running_controlled as running_controlled
    from kerolox.testing.controller import running_controller as running_controller
    from kerolox.testing.nameserver import running_nameserver as running_nameserver
    from kerolox.testing.network import Network as Network
    from kerolox.testing.network import unreliable_network as unreliable_network
    from kerolox.testing.process import BrokerProcess as BrokerProcess
    from kerolox.testing.process import broker_process as broker_process
    from kerolox.testing.threads import BrokerThread as BrokerThread
    from kerolox.testing.threads import broker_in_thread as broker_in_thread

# Public name → its module.
_PLACES = {
    "BrokerProcess": "kerolox.testing.process",
    "BrokerThread": "kerolox.testing.threads",
    "FollowerLink": "kerolox.testing.cluster",
    "ManualClock": "kerolox.testing.clock",
    "Network": "kerolox.testing.network",
    "NotCaughtUp": "kerolox.testing.cluster",
    "RunningBroker": "kerolox.testing.broker",
    "RunningCluster": "kerolox.testing.cluster",
    "RunningControlled": "kerolox.testing.controlled",
    "broker_in_thread": "kerolox.testing.threads",
    "broker_process": "kerolox.testing.process",
    "running_broker": "kerolox.testing.broker",
    "running_cluster": "kerolox.testing.cluster",
    "running_controlled": "kerolox.testing.controlled",
    "running_controller": "kerolox.testing.controller",
    "running_nameserver": "kerolox.testing.nameserver",
    "unreliable_network": "kerolox.testing.network",
}

__all__ = [*sorted(_PLACES)]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'kerolox.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(place), name)
    return value


def __dir__() -> list[str]:
    return __all__
