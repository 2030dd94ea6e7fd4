"""The settings that lead to the broker: combinations that would be ignored, secrets in the open."""

from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from decodewatch.shared import broker
from decodewatch.shared.broker import BrokerSettings, make_client, why_ended
from decodewatch.shared.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("broker_password_file", "broker_user"),
        ("broker_certificate_file", "broker_ca_file"),
        ("broker_key_file", "broker_certificate_file"),
    ],
)
def test_a_setting_that_would_be_ignored_names_the_one_that_it_needs(name: str, other: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}: /x needs {other}, which is not set"):
        BrokerSettings(**{name: Path("/x")})  # type: ignore[arg-type]


def test_a_connection_that_ends_before_an_answer_hints_at_user_and_password() -> None:
    unspecified = ReasonCode(PacketTypes.DISCONNECT, "Unspecified error")
    assert "user or password not accepted" in why_ended(unspecified, answered=False)
    assert why_ended(unspecified, answered=True) == "connection closed"
    late = ReasonCode(PacketTypes.DISCONNECT, "Keep alive timeout")
    assert why_ended(late, answered=True) == "Keep alive timeout"


def test_a_password_that_everybody_may_read_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker._log, "_last", {})
    file = tmp_path / "password"
    file.write_text("secret\n")
    settings = BrokerSettings(broker_user="u", broker_password_file=file)
    for mode in (0o640, 0o604, 0o604):
        file.chmod(mode)
        make_client(settings, "client")
    (record,) = caplog.records
    assert record.getMessage() == "broker_password_file can be read by every user of this machine"
    assert record.name.endswith(".settings"), "also for what is no setting of the broker"
    assert record.__dict__["fields"]["mode"] == "0604"
