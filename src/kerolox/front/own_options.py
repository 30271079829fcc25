"""Requests about a server's own options: tools read them and change those that may change at run time."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kerolox.config_file import ConfigFile
from kerolox.errors import InvalidRequest
from kerolox.front.requests import Answer, Request
from kerolox.options import Options, to_properties
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.codes import ResponseCode

log = logging.getLogger(__name__)


SETTINGS_BYTES_MAX = 64 * 1024  # per request


def settings_asked(body: bytes) -> dict[str, str]:
    """Return the settings in a request that changes options."""
    if len(body) > SETTINGS_BYTES_MAX:
        raise InvalidRequest(
            f"the settings have {len(body)} bytes, the limit is {SETTINGS_BYTES_MAX}: change fewer at a time"
        )
    return read_properties(body)


class OwnOptions:
    """Handlers of requests about one server's options; a subclass declares its codes. ``port`` returns its
    listen port; ``changed`` is called after each change."""

    def __init__(
        self,
        options: Options,
        file: ConfigFile,
        port: Callable[[], int],
        black_listed: Callable[[str], bool],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._options = options
        self._file = file
        self._port = port
        self._black_listed = black_listed
        self._changed = changed

    async def update(self, request: Request[None]) -> Answer:
        wanted = settings_asked(request.body)
        if any(self._black_listed(key) for key in wanted):
            return Answer(code=ResponseCode.NO_PERMISSION, remark="Can not update config in black list.")
        changed = await self._file.change(self._options, wanted)
        if changed:
            log.info("options_changed keys=%s by=%s", ",".join(changed), request.caller.address)
            self._changed()
        return Answer()

    def show(self, request: Request[None]) -> Answer:
        return Answer(body=to_properties(self._options, {"listen_port": self._port()}).encode())
