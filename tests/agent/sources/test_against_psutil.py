"""What the agent reads of this machine, held against psutil, which read it by other hands.

psutil is no dependency of the agent (docs/decisions.md, 2); as a second opinion it earns its place.
"""

import os

import psutil
import pytest

from decodewatch.agent.runtimes.process import ProcessReader
from decodewatch.agent.sources import open_sources


@pytest.fixture(name="readings", scope="module")
def _readings() -> dict[str, int | float | None]:
    sources = open_sources()
    found = {reading.key: reading.value for source in sources for reading in source.read()}
    for source in sources:
        source.close()
    return found


def test_memory_is_what_psutil_says(readings: dict[str, int | float | None]) -> None:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    assert readings["mem_total_bytes"] == memory.total
    assert readings["swap_total_bytes"] == swap.total
    assert readings["mem_available_bytes"] == pytest.approx(memory.available, rel=0.1)


def test_memory_of_a_process_is_what_psutil_says() -> None:
    pid = os.getpid()
    reader = ProcessReader(pid)
    ours, theirs = reader.memory(), psutil.Process(pid).memory_full_info()
    reader.close()
    assert ours.rss_anon.value is not None and ours.rss_file.value is not None
    # psutil's rss has shared memory too, of which a test process has next to none.
    assert ours.rss_anon.value + ours.rss_file.value == pytest.approx(theirs.rss, rel=0.05)
    assert ours.swap.value == theirs.swap


def test_shared_memory_of_a_process_is_what_psutil_says() -> None:
    pid = os.getpid()
    reader = ProcessReader(pid)
    pss, _, _ = reader.elsewhere()
    theirs = psutil.Process(pid).memory_full_info()
    reader.close()
    assert pss.value == pytest.approx(theirs.pss, rel=0.05)
