"""What holds of the adapters where none of their engines is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from decodewatch.agent.engines import onnxruntime_genai

ADAPTERS = ("llama_cpp_python", "xllamacpp", "transformers", "onnxruntime_genai")
ENGINES = ("llama_cpp", "xllamacpp", "transformers", "torch", "onnxruntime_genai", "numpy")


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_imports_no_engine(adapter: str) -> None:
    program = (
        "import sys\n"
        f"import decodewatch.agent.engines.{adapter}\n"
        f"print([name for name in {ENGINES!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model": 3}', '{"model": {"decoder": {"num_hidden_layers": "x"}}}']
)
def test_a_configuration_of_genai_that_makes_no_sense_gives_no_spec(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "genai_config.json").write_text(text)
    assert onnxruntime_genai.spec(tmp_path) is None


def test_a_buffer_that_is_shared_is_allocated_at_once(tmp_path: Path) -> None:
    decoder = {"num_hidden_layers": 2, "num_attention_heads": 4, "head_size": 8}
    config = {
        "model": {"type": "phi", "context_length": 4096, "decoder": decoder},
        "search": {"past_present_share_buffer": True, "max_length": 512},
    }
    (tmp_path / "genai_config.json").write_text(json.dumps(config))
    spec = onnxruntime_genai.spec(tmp_path)
    assert spec is not None
    assert (spec.allocation, spec.context_limit, spec.kv_heads) == ("at_once", 512, 4)
