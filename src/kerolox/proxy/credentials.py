"""Credentials of a call: the signature of its date with the secret of a user."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from kerolox.front.proof import NoProof, Proof

_SCHEME = "MQv2-HMAC-SHA1"
_NO_PROOF = NoProof()


class DateSignature(NoProof):
    """Signature of the call's date."""

    def __init__(self, user: str, date: bytes, signature: str) -> None:
        self.user = user
        self._date = date
        self._signature = signature.lower()

    def holds(self, secret: str, /, *, any_release: bool = False) -> bool:
        expected = hmac.new(secret.encode(), self._date, "sha1").hexdigest()
        return hmac.compare_digest(expected.encode(), self._signature.encode("utf-8", "replace"))


def proof_of(metadata: Mapping[str, str]) -> Proof:
    """Return the proof in a call's metadata; one that claims no user if there is none or it is malformed."""
    scheme, _, text = metadata.get("authorization", "").partition(" ")
    date = metadata.get("x-mq-date-time", "")
    if scheme != _SCHEME or not date:
        return _NO_PROOF
    items = {}
    for part in text.split(","):
        name, separator, value = part.strip().partition("=")
        if not separator:
            return _NO_PROOF
        items[name] = value
    user = items.get("Credential", "").partition("/")[0]  # Go's clients append "//Rocketmq"
    signature = items.get("Signature", "")
    if not user or not signature:
        return _NO_PROOF
    return DateSignature(user, date.encode(), signature)
