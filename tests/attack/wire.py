"""A stranger's connection: a socket from an address of its own, and frames as it likes to make them."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
from typing import Self

from kerolox.access.failures import FREE
from kerolox.protocol.command import Command, decode_command
from kerolox.protocol.frame import FrameSplitter

ANSWER_S = 10.0
_numbers = itertools.count(1)


def next_address(network: ipaddress.IPv4Network) -> str:
    """An address that has not been used: servers count failures by address. All of 127.0.0.0/8 is this
    host."""
    return str(network[1000 + next(_numbers) % (network.num_addresses - 2000)])


class Cut(Exception):
    """The server closed the connection instead of answering."""


class Line:
    """Connections to one port, each for as many refusals as are answered at once."""

    def __init__(self, address: str, network: ipaddress.IPv4Network) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._network = network
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._splitter = FrameSplitter(64 << 20)
        self._used = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def ask(self, request: Command) -> Command:
        """Raises Cut, or TimeoutError when nothing comes."""
        if self._writer is None or self._used >= FREE:
            self.close()
            source = next_address(self._network)
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, local_addr=(source, 0)
            )
            self._splitter = FrameSplitter(64 << 20)
            self._used = 0
        self._used += 1
        assert self._reader is not None
        self._writer.write(request.encode())
        async with asyncio.timeout(ANSWER_S):
            while True:
                data = await self._reader.read(1 << 16)
                if not data:
                    self.close()
                    raise Cut
                for encoding, header, body in self._splitter.feed(data):
                    answer = decode_command(encoding, header, body)
                    if answer.opaque == request.opaque:
                        return answer
