"""The proof of a follower: taken with the right secret alone, and never twice."""

from __future__ import annotations

import pytest

from kerolox.protocol.ha import pack_report
from kerolox.protocol.ha_epochs import Hello, pack_hello
from kerolox.protocol.ha_proof import (
    CHALLENGE_BYTES,
    NAME_BYTES_MAX,
    OPENING,
    PROOF_BYTES,
    FollowersProof,
    LeadersProof,
    ProofRefused,
)

SECRETS = {"inner": "the servers' secret", "müller": "straße"}


def talk(
    follower: FollowersProof, leader: LeadersProof, step: int = 1 << 16, behind: bytes = b""
) -> list[bytes]:
    """Let both speak, so many bytes at a time, until they are done; all that the follower said."""
    said = [follower.begin()]
    while not (follower.done and leader.done):
        heard = said[-1] + (behind if len(said) == 2 else b"")
        answer = b"".join(leader.feed(heard[at : at + step]) for at in range(0, len(heard), step))
        said.append(b"".join(follower.feed(answer[at : at + step]) for at in range(0, len(answer), step)))
        assert len(said) < 5
    return said


@pytest.mark.parametrize("step", [1, 3, 36, 1 << 16])
@pytest.mark.parametrize("name", SECRETS)
def test_both_are_known_to_each_other(name: str, step: int) -> None:
    follower, leader = FollowersProof(name, SECRETS[name]), LeadersProof(SECRETS.get)
    said = talk(follower, leader, step)
    assert leader.name == name
    assert (follower.rest, leader.rest) == (b"", b"")
    assert b"".join(said).find(SECRETS[name].encode()) < 0


def test_what_follows_is_left_to_others() -> None:
    follower, leader = FollowersProof("inner", SECRETS["inner"]), LeadersProof(SECRETS.get)
    talk(follower, leader, behind=pack_report(7))
    assert leader.rest == pack_report(7)
    follower, leader = FollowersProof("inner", SECRETS["inner"]), LeadersProof(SECRETS.get)
    proof = follower.feed(leader.feed(follower.begin()))
    follower.feed(leader.feed(proof) + b"ranges")
    assert follower.done
    assert follower.rest == b"ranges"


@pytest.mark.parametrize(
    ("name", "secret"), [("inner", "guessed"), ("inner", ""), ("nobody", "x"), ("müller", SECRETS["inner"])]
)
def test_who_does_not_know_the_secret_is_refused(name: str, secret: str) -> None:
    follower, leader = FollowersProof(name, secret), LeadersProof(SECRETS.get)
    proof = follower.feed(leader.feed(follower.begin()))
    with pytest.raises(ProofRefused) as refused:
        leader.feed(proof)
    assert not leader.done
    # The same words whether there is such a user or not.
    assert str(refused.value) == f"the proof of user {name!r} is wrong, or the user may not replicate"


def test_what_was_recorded_is_of_no_use() -> None:
    follower = FollowersProof("inner", SECRETS["inner"])
    recorded = talk(follower, LeadersProof(SECRETS.get))
    leader = LeadersProof(SECRETS.get)
    leader.feed(recorded[0])
    with pytest.raises(ProofRefused):
        leader.feed(recorded[1])


def test_every_bit_of_a_proof_counts() -> None:
    for at in range(2, 2 + len("inner") + CHALLENGE_BYTES + PROOF_BYTES):
        follower, leader = FollowersProof("inner", SECRETS["inner"]), LeadersProof(SECRETS.get)
        proof = bytearray(follower.feed(leader.feed(follower.begin())))
        proof[at] ^= 1
        with pytest.raises(ProofRefused):
            leader.feed(bytes(proof))


def test_a_leader_that_does_not_know_the_secret_is_not_followed() -> None:
    """It takes every proof, and cannot give its own: also not by sending the follower's back."""
    for own in (bytes(PROOF_BYTES), None):
        follower = FollowersProof("inner", SECRETS["inner"])
        proof = follower.feed(OPENING + bytes(CHALLENGE_BYTES))
        with pytest.raises(ProofRefused, match="does not know the secret"):
            follower.feed(b"\x01" + (proof[-PROOF_BYTES:] if own is None else own))


def test_a_refusal_is_heard() -> None:
    follower = FollowersProof("inner", SECRETS["inner"])
    follower.feed(OPENING + bytes(CHALLENGE_BYTES))
    with pytest.raises(ProofRefused, match="rejects the proof"):
        follower.feed(b"\x00")


@pytest.mark.parametrize("said", [b"KHA\x02", b"KHB", b"\x16\x03", pack_report(0)])
def test_other_openings_are_refused(said: bytes) -> None:
    with pytest.raises(ProofRefused):
        LeadersProof(SECRETS.get).feed(said)
    with pytest.raises(ProofRefused):
        FollowersProof("inner", "x").feed(said)


@pytest.mark.parametrize("length", [0, NAME_BYTES_MAX + 1, 65535])
def test_names_are_bounded(length: int) -> None:
    with pytest.raises(ProofRefused, match=f"{length} bytes"):
        LeadersProof(SECRETS.get).feed(OPENING + length.to_bytes(2, "big"))


def test_it_is_not_taken_for_what_followers_of_rocketmq_say() -> None:
    for said in (pack_report(0), pack_report((1 << 56) - 1), pack_hello(Hello(2, False, False))):
        assert said[0] != OPENING[0]
    assert OPENING[0] != 0x16  # TLS
