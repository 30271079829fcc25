"""Shares of the process's descriptors."""

from __future__ import annotations

import pytest

from kerolox.descriptors import OTHERS, PROCESS, Descriptors, open_files_limit


@pytest.mark.parametrize("limit", [64, 128, 256, 1024, 4096, 65_536, 1 << 20])
def test_the_store_keeps_what_it_needs(limit: int) -> None:
    one = Descriptors(limit)
    reserved = limit - one.ceiling
    assert one.ceiling > 0
    assert reserved == min(one.files + one.index_files + one.timer_files + OTHERS, limit // 2)
    assert one.connections_max <= max(limit // 2, 16)


def test_all_ports_share_the_connections() -> None:
    one = Descriptors(1024)
    first, second = {1: 1}, {2: 2}

    class Port(dict[int, int]):
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    ports = [Port(first), Port(second)]
    for port in ports:
        one.add_port(port)
    assert one.connections_left(ports[0]) == 512 - 1
    ports[1].update({number: number for number in range(500)})
    assert one.connections_left(ports[0]) == 512 - 500
    assert one.connections_left(ports[1]) == 512 - 1
    del ports[1], port
    assert one.connections_left(ports[0]) == 512


def test_the_limit_is_the_process_s() -> None:
    assert PROCESS.limit == open_files_limit()
