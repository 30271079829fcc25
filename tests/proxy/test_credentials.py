"""Proofs of users: the signature of the call's date."""

from __future__ import annotations

import pytest

from kerolox.proxy.credentials import proof_of

DATE = "20261115T194301Z"
SIGNATURE = "3b1e899ca5c522cb89f3e0f1bff6e9f86e8ebb66"  # by the secret "sk"


def metadata(credential: str = "ak", signature: str = SIGNATURE, date: str = DATE) -> dict[str, str]:
    value = f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": value, "x-mq-date-time": date}


@pytest.mark.parametrize(
    "given", [metadata(), metadata("ak//Rocketmq"), metadata(signature=SIGNATURE.upper())]
)
def test_the_secret_of_the_user_confirms(given: dict[str, str]) -> None:
    proof = proof_of(given)
    assert proof.user == "ak"
    assert proof.holds("sk")
    assert not proof.holds("other")
    assert proof.stamp("sk") is None


def test_other_dates_and_signatures_do_not() -> None:
    assert not proof_of(metadata(date="20261115T194302Z")).holds("sk")
    assert not proof_of(metadata(signature="é" * 40)).holds("sk")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"authorization": metadata()["authorization"]},
        {"authorization": "Basic YTpi", "x-mq-date-time": DATE},
        {"authorization": "MQv2-HMAC-SHA1 nonsense", "x-mq-date-time": DATE},
        metadata(credential=""),
        metadata(signature=""),
    ],
)
def test_calls_without_credentials_claim_no_user(given: dict[str, str]) -> None:
    assert proof_of(given).user == ""
    assert not proof_of(given).holds("")
