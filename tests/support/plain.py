"""What a plain install looks like: decodewatch and none of the packages of its extras."""

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
PORTIONS = os.pathsep.join(
    str(_ROOT / name) for name in ("agent", "shared", "collector", "dashboard", "migrations")
)
"""A PYTHONPATH for `python -S`, which sees no installed package."""
