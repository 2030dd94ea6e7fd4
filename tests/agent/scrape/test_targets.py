"""Which servers the setting names, and the key for them."""

from pathlib import Path

import pytest

from decodewatch.agent.scrape.targets import Target, read_key, targets
from decodewatch.shared.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:8080", Target("127.0.0.1", 8080)),
        ("http://localhost:8080/", Target("127.0.0.1", 8080)),
        ("http://127.0.0.1", Target("127.0.0.1", 80)),
        ("http://[::1]:8000/v2/llm", Target("::1", 8000, "/v2/llm")),
        ("vllm=http://127.0.0.1:8000", Target("127.0.0.1", 8000, "", "vllm")),
        ("llama-server=http://10.0.0.2:1", Target("10.0.0.2", 1, "", "llama-server")),
    ],
)
def test_a_server_is_named_by_its_address(text: str, expected: Target) -> None:
    assert targets(text) == (expected,)


def test_several_are_separated_by_commas() -> None:
    found = targets("http://127.0.0.1:1, vllm=http://[::1]:2,")
    assert [one.label for one in found] == ["127.0.0.1:1", "[::1]:2"]


@pytest.mark.parametrize(
    "text",
    [
        " , ",
        "127.0.0.1:8080",
        "https://127.0.0.1:8080",
        "http://example.org:8080",  # a name server would be asked
        "http://127.0.0.1:0",
        "http://127.0.0.1:65536",
        "http://0.0.0.0:8080",
        "http://user:secret@127.0.0.1:8080",
        "http://127.0.0.1:8080/?model=x",
        "http://127.0.0.1:8080/a b",
        "http://127.0.0.1:8080/\r\nX: y",
        "http://[::1:8080",
        "ollama=http://127.0.0.1:8080",
        ",".join(f"http://127.0.0.1:{port}" for port in range(1, 10)),
        "http://127.0.0.1:1,http://localhost:1",
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^scrape: .*accepted"):
        targets(text)


@pytest.mark.parametrize("end", ["/metrics", "/metrics/", "/v1/metrics"])
def test_a_url_of_the_metrics_themselves_is_refused_with_what_is_accepted(end: str) -> None:
    with pytest.raises(SettingsError, match=r"the agent adds /metrics itself; accepted.*PREFIX"):
        targets(f"http://127.0.0.1:8080{end}")
    assert targets("http://127.0.0.1:8080/my.metrics")[0].prefix == "/my.metrics"


def test_a_key_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-123\n")
    assert read_key(file) == "sk-123"
    assert read_key(None) is None


@pytest.mark.parametrize("content", [b"", b"a b", b"a\r\nX-Other: b", b"\xff", b"x" * 1025])
def test_what_is_no_key_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"^scrape_key_file: .*accepted") as refusal:
        read_key(file)
    assert "X-Other" not in str(refusal.value)


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^scrape_key_file: .*none: No such file"):
        read_key(tmp_path / "none")
