"""The carrier chosen by the options."""

from __future__ import annotations

from kerolox.clock import Clock
from kerolox.controller.carriers.carrier import Carrier
from kerolox.controller.carriers.embedded import EmbeddedCarrier
from kerolox.controller.options import CarrierKind, ControllerOptions


def chosen_carrier(options: ControllerOptions, clock: Clock) -> Carrier:
    """Return the carrier. Raises OptionError if it lacks an option or package."""
    if options.carrier is CarrierKind.EMBEDDED:
        return EmbeddedCarrier(options.store_path, private=options.asks_who)
    from kerolox.controller.carriers.etcd import EtcdCarrier  # its packages are an extra

    return EtcdCarrier(
        options.etcd,
        group=options.group,
        prefix=options.etcd_prefix,
        lease_s=options.etcd_lease_seconds,
        clock=clock,
    )
