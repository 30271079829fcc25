from __future__ import annotations

import pytest

from kerolox.errors import InvalidRequest
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.subscription import matches_hash, matches_tag, subscription, tag_hash, tag_hash_of


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything(expression: str | None) -> None:
    data = subscription("t", expression, 7)
    assert data == SubscriptionData(topic="t", sub_string="*", sub_version=7, expression_type="TAG")
    assert matches_hash(data, 12345)
    assert matches_tag(data, "")


def test_tags() -> None:
    data = subscription("t", "TagA || TagB||  ||TagA|| polygenelubricants\t", 7)
    assert data.sub_string == "TagA || TagB||  ||TagA|| polygenelubricants\t"
    assert data.tags_set == {"TagA", "TagB", "polygenelubricants"}
    assert data.code_set == {2598919, 2598920, -2147483648}
    assert matches_hash(data, 2598919)
    assert matches_hash(data, -2147483648)
    assert not matches_hash(data, 0)
    assert not matches_hash(data, 2598921)
    assert matches_tag(data, "TagB")
    assert not matches_tag(data, "tagb")
    assert not matches_tag(data, ""), "a message without tag is not wanted"


def test_a_hash_is_compared_as_32_bits() -> None:
    assert matches_hash(subscription("t", "TagA", 0), 2598919 + 2**32)


def test_equal_hashes_pass_the_broker_and_not_the_client() -> None:
    data = subscription("t", "Aa", 0)
    assert matches_hash(data, tag_hash("BB"))
    assert not matches_tag(data, "BB")


def test_blanks_alone_name_no_tag_and_match_nothing() -> None:
    data = subscription("t", " || ", 0)
    assert data.tags_set == frozenset()
    assert not matches_hash(data, 0)


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_separators_alone_are_refused(expression: str) -> None:
    with pytest.raises(InvalidRequest, match="names no tag"):
        subscription("t", expression, 0)


def test_sql() -> None:
    data = subscription("t", "a > 5 || b", 7, "SQL92")
    assert (data.sub_string, data.tags_set, data.code_set) == ("a > 5 || b", frozenset(), frozenset())
    assert data.expression_type == "SQL92"
    assert matches_hash(data, 99)
    with pytest.raises(InvalidRequest, match="SQL92"):
        subscription("t", "", 7, "SQL92")


def test_a_class_filter_is_not_judged_by_tags() -> None:
    data = SubscriptionData(topic="t", sub_string="x", tags_set=frozenset({"x"}), class_filter_mode=True)
    assert matches_hash(data, 1)
    assert matches_tag(data, "y")


def test_an_empty_type_means_tags() -> None:
    data = SubscriptionData(topic="t", sub_string="x", expression_type="")
    assert not matches_hash(data, 1)


def test_hash_of_packed_properties() -> None:
    assert tag_hash_of(b"KEYS\x01k\x02TAGS\x01TagA\x02") == 2598919
    assert tag_hash_of(b"KEYS\x01k\x02") == 0
    assert tag_hash_of(b"") == 0
