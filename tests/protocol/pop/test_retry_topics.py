"""Names of retry topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.pop.retry_topics import NORMAL, V1, V2, form_of, normal_topic, real_topic, retry_topic

NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)


def test_names_are_those_of_rocketmq() -> None:
    assert retry_topic("TopicTest", "CG", V1) == "%RETRY%CG_TopicTest"
    assert retry_topic("TopicTest", "CG", V2) == "%RETRY%CG+TopicTest"
    assert [form_of(topic) for topic in ("TopicTest", "%RETRY%CG", "%RETRY%CG_T", "%RETRY%CG+T")] == [
        NORMAL, V1, V1, V2,
    ]  # fmt: skip


@given(NAMES, NAMES, st.sampled_from([NORMAL, V1, V2]))
def test_the_normal_topic_is_found_again(topic: str, group: str, form: str) -> None:
    real = real_topic(topic, group, form)
    assert form_of(real) == form
    assert normal_topic(real, group) == topic


def test_the_retry_topic_of_another_group_is_not_taken_apart() -> None:
    assert normal_topic("%RETRY%other_T", "CG") == "%RETRY%other_T"
