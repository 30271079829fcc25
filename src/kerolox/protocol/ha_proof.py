"""How a follower proves who it is, before it says anything else on the port for followers. No I/O.

Whoever copies the log reads every message, so a leader with access control wants to know who does. RocketMQ
has nothing of the kind: this is ours, and a leader tells by ``haProof=true`` in its runtime information (28)
that it is asked for. It comes after the TLS handshake, if there is one, and before the first byte of
``ha.py`` or ``ha_epochs.py``.

::

    follower   4 bytes   "KHA", 1                        what comes is a proof, version 1
    leader     4 + 32    the same four, its challenge    random bytes, never used again
    follower   2 + n     length of its user's name, the name in UTF-8
               32        its own challenge               random, too
               32        its proof
    leader     1         1: come in; 0: no, and it closes
               32        its proof, after a 1

A proof is an HMAC-SHA256 under the user's secret, over "kerolox follower" or "kerolox leader", a zero byte,
both challenges, the leader's first, and the name. Each side chooses a part of what the other proves, so
nothing that was recorded is of use later. It is no signature of requests (those are HMAC-SHA1), so nobody who
plays the leader gets one out of a follower. Somebody between the two who passes everything on is not found
out by this: that is what TLS is for.

The first byte is 0x4B. Reports and hellos of RocketMQ's followers begin with 0x00, TLS with 0x16.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

from kerolox.errors import ProtocolError

OPENING = b"KHA\x01"
CHALLENGE_BYTES = 32
PROOF_BYTES = 32
NAME_BYTES_MAX = 1024
_TAKEN, _REFUSED = b"\x01", b"\x00"


class ProofRefused(ProtocolError):
    """The peer does not know the secret."""


class FollowersProof:
    """The follower's side. Write the output of :meth:`begin` and :meth:`feed` until ``done``; ``rest``
    contains the bytes received after the proof."""

    def __init__(self, name: str, secret: str) -> None:
        self.done = False
        self.rest = b""
        self._name = name.encode()
        self._secret = secret.encode()
        self._own = secrets.token_bytes(CHALLENGE_BYTES)
        self._theirs = b""
        self._came = b""

    def begin(self) -> bytes:
        return OPENING

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to send. Raises ProofRefused."""
        self._came += data
        answer = b""
        if not self._theirs:
            _check_opening(self._came)
            if len(self._came) < len(OPENING) + CHALLENGE_BYTES:
                return b""
            self._theirs, self._came = _cut(self._came[len(OPENING) :], CHALLENGE_BYTES)
            proof = _proof(b"follower", self._secret, self._theirs, self._own, self._name)
            answer = len(self._name).to_bytes(2, "big") + self._name + self._own + proof
        if self._came[:1] not in (b"", _TAKEN):
            raise ProofRefused("the leader rejects the proof")
        if len(self._came) > PROOF_BYTES:
            given, self.rest = _cut(self._came[1:], PROOF_BYTES)
            right = _proof(b"leader", self._secret, self._theirs, self._own, self._name)
            if not hmac.compare_digest(given, right):
                raise ProofRefused("the leader does not know the secret")
            self.done = True
        return answer


class LeadersProof:
    """The leader's side. ``secret_of`` returns the secret of a user who may replicate the log, None for
    others."""

    def __init__(self, secret_of: Callable[[str], str | None]) -> None:
        self.done = False
        self.name = ""  # user name of the follower, once it is done
        self.rest = b""
        self._secret_of = secret_of
        self._own = secrets.token_bytes(CHALLENGE_BYTES)
        self._is_open = False
        self._came = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to send. Raises ProofRefused; then send :data:`REFUSAL`."""
        self._came += data
        answer = b""
        if not self._is_open:
            _check_opening(self._came)
            if len(self._came) < len(OPENING):
                return b""
            self._is_open, self._came = True, self._came[len(OPENING) :]
            answer = OPENING + self._own
        if len(self._came) < 2:
            return answer
        length = int.from_bytes(self._came[:2], "big")
        if not 0 < length <= NAME_BYTES_MAX:
            raise ProofRefused(f"the name has {length} bytes, the limit is {NAME_BYTES_MAX}")
        if len(self._came) < 2 + length + CHALLENGE_BYTES + PROOF_BYTES:
            return answer
        name, rest = _cut(self._came[2:], length)
        theirs, rest = _cut(rest, CHALLENGE_BYTES)
        given, self.rest = _cut(rest, PROOF_BYTES)
        user = name.decode("utf-8", "replace")
        known = self._secret_of(user)
        secret = secrets.token_bytes() if known is None else known.encode()  # the same work for unknown users
        right = _proof(b"follower", secret, self._own, theirs, name)
        if not hmac.compare_digest(given, right) or known is None:
            raise ProofRefused(f"the proof of user {user[:100]!r} is wrong, or the user may not replicate")
        self.done, self.name = True, user
        return answer + _TAKEN + _proof(b"leader", secret, self._own, theirs, name)


REFUSAL = _REFUSED


def _proof(who: bytes, secret: bytes, leaders: bytes, followers: bytes, name: bytes) -> bytes:
    return hmac.digest(secret, b"kerolox " + who + b"\0" + leaders + followers + name, "sha256")


def _check_opening(came: bytes) -> None:
    if not OPENING.startswith(came[: len(OPENING)]):
        raise ProofRefused(f"unknown kind of proof: it begins with {came[:4]!r}, expected {OPENING!r}")


def _cut(data: bytes, at: int) -> tuple[bytes, bytes]:
    return data[:at], data[at:]
