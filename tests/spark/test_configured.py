"""Settings of a session: which of them queries go by, and which are refused or warned of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from kerolox.errors import OptionError
from kerolox.spark.configured import configured, settings_of, warn_of_shown_secrets
from kerolox.spark.datasource import RocketMQ

SECRET = "hunter2"


def session(begun_with: dict[str, str], later: dict[str, str] | None = None) -> Any:
    """As much of a session as is asked."""
    everything = begun_with | (later or {})
    return SimpleNamespace(
        conf=SimpleNamespace(getAll=everything, get=everything.get),
        sparkContext=SimpleNamespace(getConf=lambda: SimpleNamespace(contains=begun_with.__contains__)),
    )


def test_settings_are_those_with_our_prefix() -> None:
    found = settings_of(session({"spark.app.name": "x", "spark.kerolox.secretKey": SECRET}))
    assert found == {"secretKey": SECRET}
    assert settings_of(session({}, {"spark.kerolox.nameserver": "h:1"})) == {"nameserver": "h:1"}
    with pytest.raises(OptionError, match="tlsCa, perhaps"):
        settings_of(session({"spark.kerolox.tlsCas": "ca.pem"}))


@pytest.mark.parametrize("name", ["secretKey", "securitytoken", "TLSKEYPASSWORD"])
def test_a_secret_that_was_set_later_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="Spark shows later ones") as caught:
        settings_of(session({}, {f"spark.kerolox.{name}": SECRET}))
    assert SECRET not in str(caught.value)


def test_options_win_under_any_of_their_names_and_the_class_travels() -> None:
    made = configured(RocketMQ, {"nameserver": "set:1", "secretKey": SECRET})
    travelled = cloudpickle.loads(cloudpickle.dumps(made))
    assert travelled.name() == "rocketmq"
    assert travelled({"topic": "t"}).options == {"topic": "t", "nameserver": "set:1", "secretKey": SECRET}
    given = travelled({"kerolox.namesrvaddr": "given:1", "secretkey": "other"}).options
    assert given == {"kerolox.namesrvaddr": "given:1", "secretkey": "other"}
    assert configured(RocketMQ, {}) is RocketMQ
    with pytest.raises(OptionError, match="the options of settings"):
        configured(RocketMQ, {"topic": "t"})


@pytest.mark.parametrize(
    ("pattern", "warned"),
    [(None, False), ("(?i)secret|password|token", False), ("(?i)password", True), ("(?<=*", False)],
)
def test_a_session_that_shows_secrets_is_told_of(
    pattern: str | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_shown_secrets(session({} if pattern is None else {"spark.redaction.regex": pattern}))
    assert ("secrets_shown options=secretKey,securityToken " in caplog.text) == warned
