"""The model spec of a server: from its model's file where that can be read, else from its words.

The file's header is read by a program of its own, this module's `main`: a slow disk must not hold
up the agent's loop, and the memory that reading takes is gone afterwards.
"""

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any, Final

from decodewatch.agent.scrape.kinds import Said
from decodewatch.agent.scrape.values import load_json
from decodewatch.shared import logs
from decodewatch.shared.errors import DecodewatchError
from decodewatch.shared.model import ModelError, ModelSpec

log = logs.get(__name__)

_DEADLINE_US: Final = 60_000_000
_MAX_OUTPUT: Final = 256 * 1024
_RUN: Final = ("kv_types", "context_limit", "allocation")  # of the runtime, in no file


class SpecReader:
    """Makes the spec of what a server said; `spec` is good once `poll` says that it is there."""

    def __init__(self, said: Said, pid: int, root: Path, now_us: int) -> None:
        """`pid` is the server's process, whose view of the files counts."""
        self.said = said
        self.spec: ModelSpec | None = None
        self._deadline_us = now_us + _DEADLINE_US
        self._child: int | None = None
        self._output: int | None = None
        self._read = bytearray()
        if said.model and said.model_path is not None:
            self._start(_seen_by(pid, said.model_path, root))

    def poll(self, now_us: int) -> bool:
        """Whether it is done."""
        if self._output is not None:
            try:
                data = os.read(self._output, 64 * 1024)
            except BlockingIOError:
                if now_us < self._deadline_us:
                    return False
                data = b""
            self._read += data
            if data and len(self._read) <= _MAX_OUTPUT:
                return False
            self.close()
        self.spec = self._of_file() or _of_words(self.said)
        return True

    def close(self) -> None:
        """End the program, if it still runs."""
        if self._output is not None:
            os.close(self._output)
        if self._child is not None:
            try:
                os.kill(self._child, signal.SIGKILL)
                for _ in range(20):
                    if os.waitpid(self._child, os.WNOHANG)[0]:
                        break
                    time.sleep(0.005)  # it hangs in a driver if that is not enough
            except (ProcessLookupError, ChildProcessError):
                pass  # somebody waited for it already
        self._child = self._output = None

    def _start(self, path: Path) -> None:
        arguments = {name: self.said.model.get(name) for name in _RUN}
        command = [sys.executable, "-I", "-m", __name__, str(path), json.dumps(arguments)]
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        try:
            # Without `subprocess`, which costs the agent 1 MiB.
            self._child = os.posix_spawn(
                sys.executable,
                command,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
            self._output = read
        except OSError as error:
            os.close(read)
            log.warning("model file not read", every=3600, reason=str(error))
        finally:
            os.close(write)

    def _of_file(self) -> ModelSpec | None:
        found = load_json(bytes(self._read))
        try:
            return None if found is None else ModelSpec.from_json(found)
        except ModelError as error:
            log.warning("model not understood", every=3600, reason=str(error))
            return None


def _of_words(said: Said) -> ModelSpec | None:
    """The spec by what the server says alone; None where it does not even name its model."""
    if not said.model:
        return None
    try:
        return ModelSpec(**{"weight_unknown": "the model's file cannot be read", **said.model})
    except ModelError as error:
        log.warning("model not understood", every=3600, reason=str(error))
        return None


def _seen_by(pid: int, path: str, root: Path) -> Path:
    """A path of the server's as the agent can open it, also where the server is in a container."""
    if path.startswith("/"):
        return Path(f"{root / 'proc' / str(pid) / 'root'}{os.path.normpath(path)}")
    return root / "proc" / str(pid) / "cwd" / path


def main(path: str, how: dict[str, Any]) -> int:
    """Print the spec of the file at `path`, run as `how` says; nothing where it cannot be read."""
    try:
        # A pipe or a device would never come to its end.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            return 1
        types = how["kv_types"]
        spec = ModelSpec.from_gguf(
            path,
            kv_type=None if types is None else (types[0], types[1]),
            context_limit=how["context_limit"],
            allocation=how["allocation"],
        )
    except (DecodewatchError, OSError):
        return 1
    print(json.dumps(spec.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
