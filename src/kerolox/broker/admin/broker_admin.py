"""Requests about the broker itself: its settings, its figures, and cleaning."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

from kerolox.access.needs.kinds import CHANGES, CHANGES_OPTIONS, LOOKS
from kerolox.broker.base import Base
from kerolox.broker.configured.role_changes import RoleChanges
from kerolox.broker.consume.filters import bloom_of
from kerolox.broker.figures.runtime_info import RuntimeInfo
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.later.timers import Timers
from kerolox.broker.nameservers.registrations import Registrations
from kerolox.broker.role.settings import ROLE_KEYS, RoleChange, role_asked, role_at_start
from kerolox.config_file import ConfigFile
from kerolox.errors import Refused
from kerolox.front.own_options import settings_asked
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.options import change, to_properties
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.admin import (
    BrokerConfigAnswer,
    BrokerStatsRequest,
    UpdateBrokerConfigRequest,
)

log = logging.getLogger(__name__)

# RocketMQ's size of a thread pool, which tools (exportMetrics) interpret as the number of processors.
_MACHINE = f"clientCallbackExecutorThreads={os.cpu_count() or 1}\n"


class BrokerAdmin:
    """Requests that show and change the broker's options, show its figures, and clean up its files.
    ``changed`` is called with the options that took new values, by our names."""

    def __init__(
        self,
        base: Base,
        stats: Statistics,
        runtime_info: RuntimeInfo,
        timers: Timers,
        registrations: Registrations,
        roles: RoleChanges,
        changed: Callable[[Mapping[str, object]], None],
    ) -> None:
        options = base.options
        self._store = base.store
        self._found = base.endpoints.as_options() | {"queue_extension_bits": bloom_of(options).bits}
        self._stats = stats
        self._runtime_info = runtime_info
        self._options = options
        self._timers = timers if options.timer_wheel else None
        self._registrations = registrations
        self._changed = changed
        self._roles = roles
        self._leadership = base.leadership
        self._changing_role = asyncio.Lock()
        self._clock = base.clock
        self._version = DataVersion(timestamp=base.clock.wall_ms())
        self._file = ConfigFile(options.config_path) if options.config_path else None

    async def close(self) -> None:
        if self._file is not None:
            await self._file.close()

    # --- settings -------------------------------------------------------------------------------------

    @serves(RequestCode.UPDATE_BROKER_CONFIG, UpdateBrokerConfigRequest, CHANGES_OPTIONS)
    async def update(self, request: Request[UpdateBrokerConfigRequest]) -> Answer:
        """Change options that are changeable at run time, all or none, and write them to the configuration
        file."""
        wanted = settings_asked(request.body)
        if any(map(self._options.black_listed, wanted)):
            return Answer(code=ResponseCode.NO_PERMISSION, remark="Can not update config in black list.")
        to = role_asked(self._options, wanted, self._leadership.as_settings)
        wanted = {key: value for key, value in wanted.items() if key not in ROLE_KEYS}
        if to is None:
            changed = await self._keep(wanted)
        else:
            changed = await self._change_role(to, wanted, accept_loss=bool(request.header.accept_loss))
        if not changed:
            return Answer()
        log.info("options_changed keys=%s by=%s", ",".join(changed), request.caller.address)
        self._version = self._version.next(self._clock.wall_ms())
        self._changed(changed)
        if "permission" in changed:
            await self._registrations.settled()
        return Answer()

    async def _keep(self, wanted: Mapping[str, str]) -> dict[str, object]:
        if self._file is not None:
            return await self._file.change(self._options, wanted)
        changed = change(self._options, wanted)
        if changed:
            log.warning(
                "options_not_kept keys=%s next='set brokerConfigPath to keep them after a restart'",
                ",".join(changed),
            )
        return changed

    async def _change_role(
        self, to: RoleChange, wanted: Mapping[str, str], *, accept_loss: bool
    ) -> dict[str, object]:
        """Save the role before taking it: otherwise a restart would restore the old role."""
        async with self._changing_role:
            if self._file is None:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    "the role is not changed: this broker was started without a configuration file, so a "
                    "restart would restore the old role. Start it with a file (kerolox broker -c FILE), or "
                    "with the other role",
                )
            await self._roles.check(to, accept_loss=accept_loss)
            before = role_at_start(self._options)
            changed = await self._keep({**wanted, **to.settings})
            try:
                await self._roles.take(to)
            except BaseException:
                await self._keep(before.settings)
                raise
            return changed

    @serves(RequestCode.GET_BROKER_CONFIG, None, LOOKS)
    def show(self, request: Request[None]) -> Answer:
        """Return the options of the broker."""
        return Answer(
            header=BrokerConfigAnswer(version=self._version.encode().decode()),
            body=(to_properties(self._options, {**self._found, **self._role()}) + _MACHINE).encode(),
        )

    def _role(self) -> dict[str, object]:
        """Return the role, which may differ from the one in the file. An elected broker has an id of the
        election, too."""
        role = self._leadership.role
        return {"role": role.name, "broker_id": role.id} if self._leadership.elected else {"role": role.name}

    # --- figures --------------------------------------------------------------------------------------

    @serves(RequestCode.GET_BROKER_RUNTIME_INFO, None, LOOKS)
    async def figures(self, request: Request[None]) -> Answer:
        """Return figures of the running broker."""
        table = self._runtime_info.collect()
        table |= await self._store.readers.read(self._runtime_info.collect_from_disk)
        return Answer(body=KVTable(table=table).encode())

    @serves(RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsRequest, LOOKS)
    def stats(self, request: Request[BrokerStatsRequest]) -> Answer:
        """Return the rates of one counter."""
        asked = request.header
        found = self._stats.named(asked.stats_name, asked.stats_key)
        if found is None:
            return Answer(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"The stats <{asked.stats_name}> <{asked.stats_key}> not exist",
            )
        return Answer(body=found.encode())

    @serves(RequestCode.GET_TIMER_CHECK_POINT, None, LOOKS)
    def timer_checkpoint(self, request: Request[None]) -> Answer:
        """Return the progress of the timer, for followers."""
        if self._timers is None:
            return _no_timer("The checkpoint is null")
        return Answer(body=self._timers.files.checkpoint.encode())

    @serves(RequestCode.GET_TIMER_METRICS, None, LOOKS)
    def timer_metrics(self, request: Request[None]) -> Answer:
        """Return the number of waiting timer messages by topic, for followers."""
        if self._timers is None:
            return _no_timer("The timer message store is null")
        return Answer(body=self._timers.counts.body().encode())

    # --- cleaning -------------------------------------------------------------------------------------

    @serves(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, None, CHANGES)
    async def clean_queues(self, request: Request[None]) -> Answer:
        """Remove queue files whose messages have all left the log."""
        count = await self._store.expiry.remove_queue_files()
        log.info("queue_files_removed count=%d by=%s", count, request.caller.address)
        return Answer()

    @serves(RequestCode.DELETE_EXPIRED_COMMITLOG, None, CHANGES)
    def delete_expired(self, request: Request[None]) -> Answer:
        """Delete expired files of the log."""
        log.info("deletion_ordered by=%s", request.caller.address)
        self._store.expiry.order()
        return Answer()


def _no_timer(remark: str) -> Answer:
    return Answer(code=ResponseCode.SYSTEM_ERROR, remark=remark)
