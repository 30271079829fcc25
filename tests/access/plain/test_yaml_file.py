"""The text of a file of accounts, and what it says."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.access.plain.accounts import Account, Perm
from kerolox.access.plain.yaml_file import AclFileBroken, Tree, accounts_of, edited, find_account, parse
from kerolox.protocol.bodies.topics import DataVersion

WHOLE = b"""\
# the one of RocketMQ's own distribution, in short
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.1
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SOMETHING
      - "%RETRY%groupB=PUB"
      - "%RETRY%groupC=SUB"
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=SUB
  - accessKey: rocketmq2
    secretKey: "00345678"
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
dataVersion:
  - {counter: 3, timestamp: 1684290520350}
"""


def test_what_a_file_says() -> None:
    file = parse(WHOLE, "f.yml")
    one, other = file.accounts.values()
    assert one == Account(
        access_key="RocketMQ",
        secret_key="12345678",
        default_group=Perm.SUB,
        topics={"topicA": Perm.DENY, "topicB": Perm.PUB | Perm.SUB, "topicC": Perm.DENY},
        groups={"groupA": Perm.DENY, "groupB": Perm.SUB, "groupC": Perm.SUB},
    )
    assert (other.secret_key, other.admin, other.may_all) == ("00345678", True, True)
    assert [pattern.text for pattern in other.white] == ["192.168.1.*"]
    assert [pattern.text for pattern in file.white] == ["10.10.103.*", "192.168.0.1"]
    assert file.version == DataVersion(counter=3, timestamp=1684290520350)


@pytest.mark.parametrize("text", [b"", b"# nothing\n", b"accounts:\n", b"---\n"])
def test_an_empty_file_has_no_accounts(text: bytes) -> None:
    assert not parse(text, "f.yml").accounts


ACCOUNT = "accounts:\n- accessKey: rocketmq1\n  secretKey: secret-of-1\n"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("accounts:\n\t- no", 2, "not YAML"),
        ("- a\n- b", 1, "lines of key: value"),
        ("accounts: many", 1, "accounts must be a list"),
        ("accounts:\n- rocketmq1", 2, "an account must be a mapping"),
        ("accounts:\n- accessKey: rocketmq1", 2, "no secretKey"),
        ("accounts:\n- secretKey: secret-of-1", 2, "no accessKey"),
        ("accounts:\n- accessKey: short\n  secretKey: secret-of-1", 2, "must have 7"),
        (
            "accounts:\n- accessKey: rocketmq1\n  secretKey: s3cret",
            3,
            "the secretKey must have 7",
        ),
        ("accounts:\n- accessKey: rocketmq1\n  secretKey:", 3, "the secretKey must have 7"),
        ("accounts:\n- accessKey: rocketmq1\n  secretKey: 01234567", 3, "put it in quotes"),
        ("accounts:\n- accessKey: rocketmq1\n  secretKey: 2026-01-01", 3, "put it in quotes"),
        ("accounts:\n- accessKey: rocketmq1\n  secretKey: 12e45678", 3, "put it in quotes"),
        ("accounts:\n- accessKey: rocketmq1\n  secretKey: [secret-of-1]", 3, "expected a text"),
        (ACCOUNT + "  secretKey: another-one", 4, "secretKey occurs twice"),
        (ACCOUNT + "- accessKey: rocketmq1\n  secretKey: another-one", 4, "'rocketmq1' occurs twice"),
        (ACCOUNT + "  admin: perhaps", 4, "admin must be true or false"),
        (ACCOUNT + "  topicPerms: [orders]", 4, "'orders' is not a permission"),
        (ACCOUNT + "  whiteRemoteAddress: everywhere", 4, "is not an address"),
        ("globalWhiteRemoteAddresses:\n- 10.0.0.0/8", 2, "is not an address"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(AclFileBroken) as caught:
        parse(text.encode(), "f.yml")
    assert str(caught.value).startswith(f"f.yml, line {line}: ")
    assert why in str(caught.value)
    assert "secret-of-1" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(AclFileBroken, match=r"f.yml: it is not UTF-8"):
        parse(b"accounts: \xff", "f.yml")


@given(
    st.text(alphabet="accountsKey:- []{}*&!%?|>'\"#\n\t019.e~", max_size=60)
    | st.lists(st.sampled_from(WHOLE.decode().splitlines()), max_size=12).map("\n".join)
)
def test_whatever_is_in_a_file_is_taken_or_refused_with_a_reason(text: str) -> None:
    with contextlib.suppress(AclFileBroken):
        parse(text.encode(), "f.yml")


def test_a_change_keeps_the_rest_and_counts() -> None:
    def change(tree: Tree) -> None:
        account = find_account(tree, "RocketMQ")
        assert account is not None
        account["secretKey"] = "12e45678"
        accounts_of(tree).append({"accessKey": "rocketmq3", "secretKey": "yes-yes-yes"})

    before = parse(WHOLE + b"more: [1, 2]\n", "f.yml")
    text = edited(WHOLE + b"more: [1, 2]\n", "f.yml", change, 1_700_000_000_000)
    after = parse(text, "f.yml")
    assert after.version == DataVersion(counter=4, timestamp=1_700_000_000_000)
    assert after.accounts["RocketMQ"].secret_key == "12e45678"
    assert b'secretKey: "12e45678"' in text
    assert after.accounts["RocketMQ"].topics == before.accounts["RocketMQ"].topics
    assert after.accounts["rocketmq2"] == before.accounts["rocketmq2"]
    assert after.accounts["rocketmq3"].secret_key == "yes-yes-yes"
    assert after.white == before.white
    assert b"more:" in text


def test_a_change_that_could_not_be_read_is_none() -> None:
    with pytest.raises(AclFileBroken, match="must have 7"):
        edited(WHOLE, "f.yml", lambda tree: accounts_of(tree).append({"accessKey": "a", "secretKey": "b"}), 0)


def test_an_account_is_shown_without_its_secret() -> None:
    assert "12345678" not in repr(parse(WHOLE, "f.yml").accounts["RocketMQ"])
