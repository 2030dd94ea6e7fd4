"""What the sources show of a device that runs out of memory, second by second."""

from pathlib import Path
from typing import Any

import pytest
from support.devices import FakeKernel, shown

from decodewatch.agent.runtimes.process import ProcessReader
from decodewatch.agent.sampler import Sampler
from decodewatch.agent.sources.meminfo import Meminfo
from decodewatch.agent.sources.pressure import Pressure
from decodewatch.agent.sources.vmstat import Vmstat
from decodewatch.agent.sources.zram import Zram

MIB = 1 << 20
SECOND = 1_000_000
PID = 4711
RAM, SWAP = 15656, 7828

# MiB of memory and of swap that were in use, each second, as an Orin NX said them, until the kernel
# killed the process that took them; the stalls go with that and are made up.
USED = [
    (6567, 3109, 0),
    (9686, 3109, 0),
    (12591, 3109, 3),
    (14897, 3316, 40),
    (15093, 3618, 300),
    (15251, 5538, 2000),
    (15451, 7822, 9000),
    (15031, 7400, 9500),
]
AFTER = (4299, 3362, 9600)


class Device:
    """The files of such a device, and what reads them."""

    def __init__(self, folder: Path) -> None:
        self.kernel = FakeKernel(folder)
        self._swapped_out = 0
        self.kernel.write(f"/proc/{PID}/stat", f"{PID} (app) S {'1 ' * 18}555 0 0\n")
        self.kernel.write("/sys/block/zram0/disksize", f"{SWAP * MIB}\n")
        self.show(*USED[0])
        kinds = (Meminfo, Vmstat, Pressure, Zram)
        self.sources = [kind(folder, self.kernel) for kind in kinds]
        self.sampler = Sampler(self.sources, 0, lambda source, fault: None)
        self.process = ProcessReader(PID, folder, self.kernel, ticks_per_second=100)

    def show(self, used: int, swapped: int, stalls: int, kills: int = 0) -> None:
        """Let the files say this, in MiB."""
        kernel = self.kernel
        self._swapped_out = max(self._swapped_out, swapped)
        kernel.write(
            "/proc/meminfo",
            f"MemTotal: {RAM * 1024} kB\nMemFree: {(RAM - used) * 512} kB\n"
            f"MemAvailable: {(RAM - used) * 1024} kB\n"
            f"SwapTotal: {SWAP * 1024} kB\nSwapFree: {(SWAP - swapped) * 1024} kB\n",
        )
        kernel.write(
            "/proc/vmstat",
            f"pgmajfault {stalls * 10}\npswpin 0\npswpout {self._swapped_out * 256}\n"
            f"allocstall_normal {stalls // 2}\nallocstall_movable {stalls - stalls // 2}\n"
            f"pgskip_normal 0\noom_kill {kills}\n",
        )
        waits = f"avg10=0.00 avg60=0.00 avg300=0.00 total={stalls * 100}"
        kernel.write("/proc/pressure/memory", f"some {waits}\nfull {waits}\n")
        original = swapped * MIB
        kernel.write(
            "/sys/block/zram0/mm_stat",
            f"{original} {original // 4} {original // 3} 0 {original // 3} 0 0 0 0\n",
        )
        grown = (used - USED[0][0] + swapped - USED[0][1]) * 1024
        if not kills:
            kernel.write(f"/proc/{PID}/status", f"RssAnon:\t{grown} kB\nVmSwap:\t0 kB\n")

    def read(self) -> dict[str, Any]:
        """What all sources show now."""
        return dict(shown(reading for source in self.sources for reading in source.read()))


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_memory_and_swap_run_out_together_and_nothing_of_it_is_unknown(device: Device) -> None:
    """Report 43."""
    available, left, taken = [], [], []
    for state in USED:
        device.show(*state)
        found = device.read()
        available.append(found["mem_available_bytes"] // MIB)
        left.append(found["swap_free_bytes"] // MIB)
        taken.append(found["zram_used_bytes"] // MIB)
        device.kernel.now += 1
    assert available == [9089, 5970, 3065, 759, 563, 405, 205, 625]
    assert left == [4719, 4719, 4719, 4512, 4210, 2290, 6, 428]
    # Swap that lies in memory takes it: a third of what was swapped out was never won.
    assert taken[6] - taken[0] == 1571


def test_an_interval_with_a_kill_shows_the_lowest_and_the_kill(device: Device) -> None:
    """Report 43: the last reading alone looks like a device at rest."""
    for second, state in enumerate(USED):
        device.show(*state)
        device.sampler.tick(second * SECOND)
        assert device.process.alive() is True
    device.kernel.remove(f"/proc/{PID}")
    device.show(*AFTER, kills=1)
    device.sampler.tick(9 * SECOND)
    assert device.process.alive() is False
    assert device.process.memory().anon_and_swap is None, "unknown, not 0"
    sample = device.sampler.close(10 * SECOND)
    assert sample is not None
    mean, low, high = sample.values["mem_available_bytes"]  # type: ignore[misc]
    assert (low // MIB, high // MIB) == (205, RAM - 4299)
    assert low < mean < high
    _, least_swap, _ = sample.values["swap_free_bytes"]  # type: ignore[misc]
    assert least_swap == 6 * MIB
    assert sample.values["oom_kills"] == 1
    assert sample.values["alloc_stalls"] == 9600
    assert sample.values["psi_memory_full_microseconds"] == 960_000
    assert sample.values["swap_out_bytes"] == (7822 - 3109) * MIB


def test_the_stalls_rise_seconds_before_the_kill(device: Device) -> None:
    """Report 43: the early sign, beside the largest free block, while memory is still free."""
    device.read()
    for state in USED[:4]:
        device.show(*state)
    found = device.read()
    assert found["alloc_stalls"] == 40
    assert found["oom_kills"] == 0
    assert found["mem_available_bytes"] > 700 * MIB
