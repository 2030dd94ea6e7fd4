"""Prints what jetson-stats (jtop) knows of this Jetson, one JSON object a second.

    {"emc": {"cur": 2133000, "max": 3199000}, "shared": 524288, "rails": {"VDD_IN": 5299},
     "gpu": {"load": 33.0, "cur": 612000}, "mode": "MAXN_SUPER"}

EMC in kHz, shared (the memory of the GPU) in KiB, rails in mW, load in percent, all as jtop has
them; null where it has none. The share of the memory's bandwidth is left out: on L4T 36 and later
jtop's is always 0.
"""

import json
import os
import signal
from collections.abc import Callable
from typing import Any, TextIO

# With a shorter one the service stalls.
INTERVAL_S = 1.0
# The agent ends a helper that hangs; this does where the agent was killed before it could.
ALONE_S = 60


def main(out: TextIO) -> None:
    """Print until something fails, and then what that is."""
    signal.alarm(ALONE_S)
    try:
        from jtop import JtopException, jtop
    except Exception as error:
        tell(out, {"failed": "absent", "why": f"jetson-stats cannot be imported: {error}"})
        return
    try:
        jetson = jtop(interval=INTERVAL_S)
        jetson.start()  # may wait for the service forever
        while jetson.ok():
            signal.alarm(ALONE_S)
            tell(out, values(jetson))
        tell(out, {"failed": "transient", "why": "jtop.service stopped answering"})
    except JtopException as error:
        tell(out, {"failed": reason(error), "why": str(error)})
    except Exception as error:
        tell(out, {"failed": "transient", "why": f"{type(error).__name__}: {error}"})


def values(jetson: Any) -> dict[str, Any]:
    """What the agent asks for; each that jtop cannot give costs only itself."""
    return {
        "emc": attempt(lambda: {name: jetson.memory["EMC"].get(name) for name in ("cur", "max")}),
        "shared": attempt(lambda: jetson.memory["RAM"]["shared"]),
        "rails": attempt(lambda: rails(jetson.power)),
        "gpu": attempt(lambda: gpu(jetson.gpu)),
        "mode": attempt(lambda: str(jetson.nvpmodel.name)),
    }


def rails(power: Any) -> dict[str, Any]:
    """The power of each rail; jtop keeps the one that is the whole board's apart."""
    found = {str(name): rail["power"] for name, rail in power["rail"].items()}
    if "name" in power["tot"]:
        found[str(power["tot"]["name"])] = power["tot"]["power"]
    return found


def gpu(gpus: Any) -> dict[str, Any]:
    """The load and the clock of the first GPU."""
    first = gpus[next(iter(gpus.keys()))]
    return {
        "load": attempt(lambda: first["status"]["load"]),
        "cur": attempt(lambda: first["freq"]["cur"]),
    }


def attempt(get: Callable[[], Any]) -> Any:
    """What `get` returns; None for whatever it raises."""
    try:
        return get()
    except Exception:
        return None


def reason(error: Exception) -> str:
    """Why the service cannot be asked, in the agent's words."""
    cause = error.__context__
    if isinstance(cause, PermissionError):
        return "denied"
    if isinstance(cause, (FileNotFoundError, ConnectionRefusedError)):
        return "absent"
    text = str(error)
    if text.startswith("Authentication"):
        return "denied"
    return "unsupported" if text.startswith("Mismatch") else "transient"


def tell(out: TextIO, said: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps(said, default=str), file=out, flush=True)


if __name__ == "__main__":
    # What the library prints must not be taken for a line of the helper.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        main(lines)
    except BrokenPipeError:
        pass  # the agent is gone
    os._exit(0)  # not waiting for the library's threads
