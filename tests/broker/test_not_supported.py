"""What is not supported says so, and why."""

from __future__ import annotations

from pathlib import Path

from kerolox.broker.admin.not_supported import ROWS
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.topic import CreateTopicRequest
from kerolox.testing.broker import running_broker


async def test_static_topics_are_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        header = CreateTopicRequest(
            topic="t", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
            topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
        )  # fmt: skip
        code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
        answer = await dialer.call(running.address, code, header, b"{}")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark is not None
        assert answer.remark.startswith(" request type 513 (UPDATE_AND_CREATE_STATIC_TOPIC) not supported")
        assert "kerolox topic create" in answer.remark
        assert running.broker.tables.topics.find("t") is None


async def test_all_of_them_are_answered(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as running, Dialer() as dialer:
        for row in ROWS:
            answer = await dialer.call(running.address, row.code)
            assert (answer.code, row.rejected in (answer.remark or "")) == (3, True)
