"""Receipt handles."""

from __future__ import annotations

import pytest

from kerolox.protocol.grpc.messages import Code
from kerolox.proxy.checks import Rejected
from kerolox.proxy.receipts import Receipt

TEXT = "120 1794771855026 60000 3 0 broker-a 2 123 40960"


def test_nine_fields() -> None:
    receipt = Receipt.parse(TEXT)
    assert str(receipt) == TEXT
    assert receipt.log_offset == 40960
    assert receipt.place == ("broker-a", 2, 123)
    assert not receipt.has_expired(1794771855026 + 59_999)
    assert receipt.has_expired(1794771855026 + 60_000)


def test_a_changed_receipt_is_a_pop_of_its_own() -> None:
    changed = Receipt.parse(TEXT).changed(1794771860000, 10_000, 3)
    assert str(changed) == "123 1794771860000 10000 3 0 broker-a 2 123 40960"


@pytest.mark.parametrize(("form", "topic"), [("0", "T"), ("1", "%RETRY%g_T"), ("2", "%RETRY%g+T")])
def test_the_topic_that_holds_the_message(form: str, topic: str) -> None:
    assert Receipt.parse(TEXT.replace(" 3 0 ", f" 3 {form} ")).topic("T", "g") == topic


@pytest.mark.parametrize("text", ["", "nonsense", TEXT.replace("120", "x"), TEXT + "x", "1 2 3 4 9 b 6 7 8"])
def test_other_texts_are_refused_with_the_code_of_the_gone(text: str) -> None:
    with pytest.raises(Rejected) as refused:
        Receipt.parse(text)
    assert refused.value.status is Code.INVALID_RECEIPT_HANDLE


def test_without_the_place_in_the_log() -> None:
    assert Receipt.parse(TEXT.rpartition(" ")[0]).log_offset == -1
