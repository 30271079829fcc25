from __future__ import annotations

import pytest

from kerolox.errors import OptionError
from kerolox.store.delay_table import DEFAULT_LEVELS, due_ms, parse_levels


def test_the_levels_of_rocketmq() -> None:
    seconds = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    assert parse_levels(DEFAULT_LEVELS) == tuple(s * 1000 for s in seconds)
    assert parse_levels(" 2d  1s ") == (172_800_000, 1000)


@pytest.mark.parametrize("text", ["", " ", "1", "s", "1x", "1s,5s", "one"])
def test_what_is_no_table(text: str) -> None:
    with pytest.raises(OptionError, match="messageDelayLevel"):
        parse_levels(text)


def test_when_a_message_is_due() -> None:
    levels = parse_levels(DEFAULT_LEVELS)
    assert due_ms(levels, 1, 100) == 1100
    assert due_ms(levels, 18, 100) == due_ms(levels, 19, 100) == due_ms(levels, 1 << 40, 100) == 7_200_100
