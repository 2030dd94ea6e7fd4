"""Settings: where a value comes from, and refusals that name source, value and what is accepted."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from decodewatch.shared.errors import SettingsError
from decodewatch.shared.settings import TABLES, add_flags, describe, load, setting


@dataclass(frozen=True)
class Example:
    host: str = setting("127.0.0.1", "where to listen")
    port: int = setting(1883, "the port", low=1, high=65535)
    pace: float = setting(1.0, "seconds between samples", low=0.1)
    limit: int = setting(1 << 26, "bytes", low=1 << 20, high=1 << 36)
    secure: bool = setting(False, "whether to use TLS")
    file: Path | None = setting(None, "a file")
    form: str = setting("text", "form of the log", choices=("text", "json"))


def loaded(
    toml: str | None = None, environment: dict[str, str] | None = None, **flags: Any
) -> Example:
    if toml is not None:
        path = Path(flags.pop("folder")) / "settings.toml"
        path.write_text(toml)
        flags["settings"] = str(path)
    return load(Example, "agent", flags, environment or {})


def test_without_any_source_the_defaults_apply() -> None:
    assert loaded() == Example()


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    toml = '[agent]\nport = 1\npace = 2\nhost = "file"\n[up]\nanything = 1\n'
    environment = {"DECODEWATCH_AGENT_PORT": "2", "DECODEWATCH_AGENT_HOST": "environment"}
    found = loaded(toml, environment, folder=tmp_path, port="3")
    assert (found.port, found.host, found.pace) == (3, "environment", 2.0)


@pytest.mark.parametrize(
    ("text", "value"), [("yes", True), ("ON", True), ("0", False), ("False", False)]
)
def test_a_boolean_is_read_as_people_write_it(text: str, value: bool) -> None:
    assert loaded(environment={"DECODEWATCH_AGENT_SECURE": text}).secure is value


def test_a_path_loses_its_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert loaded(file="~/x").file == tmp_path / "x"


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[agent]\nprot = 1\n", r"settings.toml: \[agent\] prot: no such setting; known are"),
        ('[agent]\nport = "1883"\n', r"port: '1883'; accepted is a whole number from 1 to 65535"),
        ("[agent]\nport = true\n", "port: True; accepted"),
        ('[agent]\nfile = "~nosuchuser/x"\n', "file: '~nosuchuser/x'; accepted is a path"),
        ('[agent]\nfile = "a\\u0000b"\n', "file: .*; accepted is a path"),
        (f"[agent]\npace = 1{'0' * 400}\n", "pace: 1000"),
        ("[agent]\nx = " + "[" * 5000, "not TOML"),
        ("[agent]\nport = 0\n", "port: 0; accepted is a whole number from 1 to 65535"),
        ("[agent]\npace = nan\n", "pace: nan; accepted is a number, at least 0.1"),
        ("[agent]\nsecure = 1\n", "secure: 1; accepted is true or false"),
        ('[agent]\nform = "xml"\n', "form: 'xml'; accepted is text or json"),
        ('[agent]\nhost = "a\\nb"\n', "host: "),
        ("agent = 1\n", r"agent: 1; accepted is a table \[agent\]"),
        ("up = 1\n", r"settings.toml: up: 1; accepted is a table \[up\]"),
        ("[[agent]]\nport = 1\n", r"agent: \[.*\]; accepted is a table \[agent\]"),
        ("port = 1\n[agent]\n", r"settings.toml: 'port': no such table; known are \[agent\], "),
        ("[agnet]\nport = 1\n", r"settings.toml: 'agnet': no such table; .*\[collector\], "),
        ("[agent\n", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, toml: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        loaded(toml, folder=tmp_path)


def test_components_share_one_file_and_each_reads_its_own_table(tmp_path: Path) -> None:
    toml = "".join(f"[{table}]\nport = {port}\n" for port, table in enumerate(TABLES, 1))
    assert loaded(toml, folder=tmp_path).port == 1
    file = {"settings": str(tmp_path / "settings.toml")}
    ports = [load(Example, table, file, {}).port for table in TABLES]
    assert ports == list(range(1, len(TABLES) + 1))


def test_a_file_that_is_not_utf8_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "gbk.toml"
    path.write_bytes('[agent]\nhost = "设置"\n'.encode("gbk"))
    with pytest.raises(SettingsError, match=r"gbk.toml: byte 16 is not UTF-8"):
        load(Example, "agent", {"settings": str(path)}, {})


def test_a_file_that_was_asked_for_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere.toml: no such settings file"):
        load(Example, "agent", {"settings": str(tmp_path / "nowhere.toml")}, {})


def test_an_unknown_variable_of_the_component_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"\$DECODEWATCH_AGENT_PROT: no such setting"):
        loaded(environment={"DECODEWATCH_AGENT_PROT": "1", "DECODEWATCH_OTHER_X": "1"})


def test_a_wrong_flag_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="--port: 'many'; accepted is a whole number"):
        loaded(port="many")


def test_a_flag_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(SettingsError, match="--host: "):
        loaded(host="\udcff\udcfe")


def test_every_setting_has_a_flag_with_its_default() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Example)
    help_text = " ".join(parser.format_help().split())
    for item in describe(Example):
        assert f"--{item.name}" in help_text
        assert item.accepts.help in help_text


def test_a_flag_shows_what_stands_for_its_value_and_its_bounds_with_all_digits() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Example)
    help_text = " ".join(parser.format_help().split())
    assert "--form {text,json}" in help_text
    assert "--host TEXT" in help_text
    assert "--file PATH" in help_text
    assert "a whole number from 1048576 to 68719476736" in help_text
    assert "a number, at least 0.1" in help_text


def test_a_command_may_offer_some_of_the_settings_only() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Example, ("host",))
    assert set(vars(parser.parse_args([]))) == {"settings", "host"}
