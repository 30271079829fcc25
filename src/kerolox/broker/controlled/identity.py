"""Id of this broker among the replicas of its name. The controller assigns it once; a file keeps it.

The requested id is written to a file before the request, with a code that identifies the request as this
broker's. If the answer is lost, the request is repeated, and no id is wasted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from kerolox.atomic_file import write_atomically
from kerolox.broker.controlled.controllers import Controllers
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock
from kerolox.errors import KeroloxError, ProtocolError, RequestFailed
from kerolox.observers import Observers
from kerolox.protocol.broker_identity import (
    IDENTITY_FILE,
    SET_SUFFIX,
    BrokerIdentity,
    decode_identity,
    encode_identity,
    register_check_code,
)
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.controller import ApplyBrokerIdRequest, NextBrokerIdAnswer, NextBrokerIdRequest

log = logging.getLogger(__name__)

TRIES = 5  # ids that other brokers take during the request


class NotThisBroker(KeroloxError):
    """The file of the id belongs to another broker, or is not a valid file."""


class Identity:
    """Id of this broker; ``id`` is 0 until it is known."""

    def __init__(self, options: BrokerOptions, address: str, clock: Clock) -> None:
        self.id = 0
        self.on_known: Observers[[int]] = Observers("id known")
        self.path = Path(options.identity_path or Path(options.store_path) / IDENTITY_FILE)
        self._asked_path = Path(f"{self.path}-temp")
        self._cluster = options.cluster
        self._name = options.broker_name
        self._address = address
        self._clock = clock

    async def obtain(self, controllers: Controllers) -> int:
        """Return the id from the file, or from the controller. Raises the error of a failed step; may be
        repeated."""
        if self.id:
            return self.id
        kept = await self._read(self.path)
        if kept is not None:
            return self._known(kept.id)
        for _ in range(TRIES):
            asked = await self._read(self._asked_path) or await self._ask_next(controllers)
            try:
                await controllers.ask(
                    RequestCode.CONTROLLER_APPLY_BROKER_ID,
                    ApplyBrokerIdRequest(
                        cluster_name=self._cluster,
                        broker_name=self._name,
                        applied_broker_id=asked.id,
                        register_check_code=asked.check_code,
                    ),
                )
            except RequestFailed as error:
                if error.response_code != ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                    raise
                # Another broker was faster. Any other error keeps the file, because the id may be this
                # broker's.
                log.info("id_taken id=%d reason=%r", asked.id, str(error))
                await asyncio.to_thread(_remove, self._asked_path)
                continue
            await asyncio.to_thread(self._keep, asked._replace(check_code=None))
            log.info("id_given id=%d name=%r path=%s", asked.id, self._name, self.path)
            return self._known(asked.id)
        raise KeroloxError(f"{TRIES} ids in a row were taken by other brokers during the request")

    def _known(self, id: int) -> int:
        self.id = id
        self.on_known(id)
        return id

    async def _ask_next(self, controllers: Controllers) -> BrokerIdentity:
        answer = await controllers.ask(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            NextBrokerIdRequest(cluster_name=self._cluster, broker_name=self._name),
        )
        next_id = answer.header(NextBrokerIdAnswer).next_broker_id
        if next_id is None:
            raise ProtocolError("the controller's answer to GET_NEXT_BROKER_ID has no nextBrokerId")
        code = register_check_code(self._address, self._clock.wall_ms())
        asked = BrokerIdentity(self._cluster, self._name, next_id, code)
        await asyncio.to_thread(write_atomically, self._asked_path, encode_identity(asked))
        return asked

    def _keep(self, identity: BrokerIdentity) -> None:
        _remove(Path(f"{self.path}{SET_SUFFIX}"))  # of another identity: its ids may mean other brokers
        write_atomically(self.path, encode_identity(identity))
        _remove(self._asked_path)

    async def _read(self, path: Path) -> BrokerIdentity | None:
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotThisBroker(f"{path} cannot be read: {error}. Give this broker read access") from error
        try:
            found = decode_identity(data)
        except ProtocolError as error:
            raise NotThisBroker(
                f"{path} is damaged: {error}. Restore it; or remove it to get a new id"
            ) from error
        if (found.cluster, found.broker_name) != (self._cluster, self._name):
            raise NotThisBroker(
                f"{path} belongs to broker {found.broker_name!r} of cluster {found.cluster!r}, but this "
                f"broker is {self._name!r} of {self._cluster!r}. Restore brokerName and brokerClusterName; "
                "or give this broker another store"
            )
        return found


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
