"""A real disk that a test can fill."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    """A file system of its own, of so many KiB; skips the test where none may be mounted."""
    folder.mkdir()
    options = f"size={kibibytes}k"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(file: Path, leave: int = 0) -> None:
    """Write to a file until its disk is full, but for so many bytes."""
    with file.open("wb", buffering=0) as out:
        try:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        out.write(b"x" * size)
                except OSError:
                    continue
        finally:
            out.truncate(max(out.tell() - leave, 0))
