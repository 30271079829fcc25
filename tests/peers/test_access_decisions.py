"""The same users, rules and requests decided by our guard and by Apache's classes. ``make access-decisions``
tries thousands more."""

from __future__ import annotations

import pytest

from . import access_needs
from .access_cases import decisions, odd_changes
from .access_decisions import OTHER_FAMILY, STRICTER, TAKEN, WRITTEN_OTHERWISE, compare
from .conftest import JavaDriver

SEED = 1605


@pytest.fixture
def driver(java_driver: JavaDriver) -> JavaDriver:
    if java_driver.jars.is_4x:
        pytest.skip("RocketMQ 4.9 has no such rules")
    return java_driver


def test_requests_are_decided_alike(driver: JavaDriver) -> None:
    result = compare(driver, decisions(SEED, 400))
    assert result.unnamed == []
    assert set(result.differences) <= {OTHER_FAMILY, WRITTEN_OTHERWISE}
    assert result.requests > 2500
    assert result.allowed > 300  # else it says little
    assert result.denied > 300


def test_odd_rules_are_refused_and_each_difference_has_a_name(driver: JavaDriver) -> None:
    result = compare(driver, odd_changes(SEED))
    assert result.unnamed == []
    found = {name.partition(":")[0].partition(" (")[0] for name in result.differences}
    # Each is still one: a table of differences that are none would say nothing.
    assert found == {*STRICTER, *TAKEN}


@pytest.mark.parametrize("server", access_needs.SERVERS)
def test_requests_need_what_apaches_need_or_more(driver: JavaDriver, server: str) -> None:
    rules = access_needs.SERVERS[server]
    result = access_needs.compare(driver, rules)
    assert result.unnamed == []
    assert result.requests > 2 * len(rules)
    if server == "broker":
        assert set(result.otherwise) >= set(access_needs.OTHERWISE) - {"what is not said has a usual value"}
        assert len(result.equal) > 25
