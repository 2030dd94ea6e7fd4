"""What is different for an app of Android, Termux's Python among them."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def is_android() -> bool:
    """Whether this is Android's Python. It calls itself `android` since 3.13, and `linux` before;
    all of them know which version of Android they were made for."""
    return sys.platform == "android" or hasattr(sys, "getandroidapilevel")


def user_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's agent listens who has no runtime folder.

    Below /tmp; Android gives apps none, and Termux has its own in $TMPDIR.
    """
    temporary = "/tmp"
    if is_android():
        temporary = environment.get("TMPDIR") or "/data/local/tmp"
    return Path(temporary) / f"decodewatch-{os.geteuid()}"
