"""Prints what NVIDIA's management library (NVML) knows of the GPUs, one JSON object a second.

    {"gpus": [{"id": "00000000:01:00.0", "busy": 37, "clock": 1980, "memory_clock": 10501,
               "power": 187250, "power_limit": 320000, "temperature": 61, "limits": 4,
               "memory": {"total": 17171480576, "used": 9663676416},
               "processes": {"4321": 9126805504}}]}

Busy in percent, clocks in MHz, power in mW, temperature in C, memory in bytes, limits the bits of
nvmlClocksEventReasons. What NVML refuses has the reason in its place: "unsupported" for N/A.

The share of the time in which the memory was accessed is left out: it says nothing of how much of
the bandwidth was used.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

INTERVAL_S = 1.0
# The agent ends a helper that hangs; this does where the agent was killed before it could.
ALONE_S = 60
MOST_GPUS = 16
MOST_PROCESSES = 256

# The GPU of Jetsons up to Orin, whose driver has an NVML that knows nothing and may say 0.
STUB = "(nvgpu)"

NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26

REASONS = {
    NOT_SUPPORTED: "unsupported",
    FUNCTION_NOT_FOUND: "unsupported",  # a driver older than the function
    LIB_RM_VERSION_MISMATCH: "unsupported",  # the driver was updated, and the device not restarted
    ARGUMENT_VERSION_MISMATCH: "unsupported",
    DEPRECATED: "unsupported",
    NO_PERMISSION: "denied",
    DRIVER_NOT_LOADED: "absent",
    LIBRARY_NOT_FOUND: "absent",
}


def main(out: TextIO) -> None:
    """Print until something fails, and then what that is."""
    signal.alarm(ALONE_S)
    try:
        import pynvml as nvml
    except Exception as error:
        tell(out, {"failed": "absent", "why": f"nvidia-ml-py cannot be imported: {error}"})
        return
    try:
        nvml.nvmlInit()
        gpus = found(nvml)
    except nvml.NVMLError as error:
        tell(out, {"failed": reason(error), "why": f"NVML: {error}"})
        return
    if not gpus:
        tell(out, {"failed": "unsupported", "why": "no GPU that NVML knows anything of"})
        return
    while True:
        signal.alarm(ALONE_S)
        began = time.monotonic()
        shown = [{"id": name, **values(nvml, handle)} for name, handle in gpus]
        if all(gpu["busy"] == gpu["clock"] == "transient" for gpu in shown):
            # One that fell off the bus, or whose driver was loaded again, needs a new start.
            tell(out, {"failed": "transient", "why": "NVML: no GPU answers"})
            return
        tell(out, {"gpus": shown})
        time.sleep(max(INTERVAL_S - (time.monotonic() - began), 0.1))


def found(nvml: Any) -> list[tuple[str, Any]]:
    """The GPUs, each by the place of its bus where it has one."""
    gpus = []
    for index in range(min(nvml.nvmlDeviceGetCount(), MOST_GPUS)):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name = nvml.nvmlDeviceGetName(handle)
        except nvml.NVMLError:
            continue  # lost; the others are not
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        if STUB in text:
            continue
        gpus.append((place(nvml, handle) or f"gpu{index}", handle))
    return gpus


def place(nvml: Any, handle: Any) -> str:
    """Where a GPU is on the bus; nothing where it is on none."""
    info = ask(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle))
    if isinstance(info, str):
        return ""
    bus = info.busId
    return bus.decode("ascii", "replace") if isinstance(bus, bytes) else str(bus)


def values(nvml: Any, handle: Any) -> dict[str, Any]:
    """What one GPU shows now."""

    def first(*names: str) -> Any:
        """Of the names that a function has had, what the first that there is says."""
        answer: Any = "unsupported"
        for name in names:
            answer = ask(nvml, partial(call, nvml, name, handle))
            if answer != "unsupported":
                break
        return answer

    memory = first("nvmlDeviceGetMemoryInfo")
    return {
        "busy": ask(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "clock": ask(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_GRAPHICS)),
        "memory_clock": ask(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "power": first("nvmlDeviceGetPowerUsage"),
        "power_limit": first("nvmlDeviceGetEnforcedPowerLimit"),
        "temperature": temperature(nvml, handle),
        "limits": first(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        ),
        "memory": memory
        if isinstance(memory, str)
        else {"total": memory.total, "used": memory.used},
        "processes": processes(
            first(
                "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"
            ),
            first(
                "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2"
            ),
        ),
    }


def temperature(nvml: Any, handle: Any) -> Any:
    """Of the chip. A Thor knows only the newer of the two functions, an old driver the older."""
    answer = ask(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    if answer == "unsupported":
        answer = ask(
            nvml, lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)
        )
    return answer


def processes(*lists: Any) -> Any:
    """The memory of each process by its pid; one that computes and draws is in both lists."""
    found: dict[str, int] = {}
    for processes in lists:
        if not isinstance(processes, str):
            for process in processes[:MOST_PROCESSES]:
                if process.usedGpuMemory is not None:
                    pid = str(process.pid)
                    found[pid] = max(found.get(pid, 0), process.usedGpuMemory)
    refused = [answer for answer in lists if isinstance(answer, str)]
    return refused[0] if len(refused) == len(lists) else found


def call(nvml: Any, name: str, handle: Any) -> Any:
    """A function of NVML that this nvidia-ml-py may not have."""
    return getattr(nvml, name)(handle)


def ask(nvml: Any, get: Callable[[], Any]) -> Any:
    """What NVML answers, or why it does not."""
    try:
        return get()
    except nvml.NVMLError as error:
        return reason(error)
    except Exception:
        # The driver or nvidia-ml-py is older than the function; each version says so otherwise.
        return "unsupported"


def reason(error: Any) -> str:
    """Why NVML does not answer, in the agent's words."""
    return REASONS.get(error.value, "transient")


def tell(out: TextIO, said: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    # What the library prints must not be taken for a line of the helper.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        main(lines)
    except BrokenPipeError:
        pass  # the agent is gone
    os._exit(0)
