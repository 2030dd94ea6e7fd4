"""Who this device is, which boot this is, and what its clocks say."""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from decodewatch.agent.errors import AgentError
from decodewatch.shared import clock, logs
from decodewatch.shared.errors import shown
from decodewatch.shared.ids import check_device_id, is_device_id, uuid7
from decodewatch.shared.wire import Clock

log = logs.get(__name__)

FILE = "identity.json"
_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """The device's id and the salt of its session hashes; `made` where both are new."""

    device: str
    salt: bytes
    made: bool

    def session(self, name: str) -> str:
        """What stands for an application's session: a hash that only this device can make."""
        return hashlib.blake2b(name.encode(), digest_size=8, key=self.salt).hexdigest()


def make_state(folder: Path) -> None:
    """Make the state folder, for the agent's user alone, where there is none. Raises AgentError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise AgentError(
            f"state_folder: {folder}: {error.strerror}; accepted is one that it may make"
        ) from None


def load(folder: Path, device: str | None) -> Identity:
    """The identity that the state folder keeps; made and kept there the first time.

    `device` is the setting, which wins. Raises SettingsError where it cannot name a device, and
    AgentError where the file cannot be read or written. A damaged file is set aside.
    """
    if device is not None:
        check_device_id(device)
    file = folder / FILE
    kept = _read(file)
    if kept is None:
        made = Identity(device or "dev-" + uuid7()[-12:], os.urandom(_SALT_BYTES), True)
        _write(file, made)
        return made
    return Identity(device or kept.device, kept.salt, False)


def _read(file: Path) -> Identity | None:
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        value = json.loads(raw)
        device, salt = value["device"], bytes.fromhex(value["salt"])
        if isinstance(device, str) and is_device_id(device) and len(salt) == _SALT_BYTES:
            return Identity(device, salt, False)
        reason = f"device {shown(device)}, salt of {len(salt)} bytes"
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    aside = file.with_suffix(".damaged")
    log.error("identity file damaged, the device gets a new one", reason=reason, kept_as=aside)
    try:
        file.rename(aside)
    except OSError as error:
        raise AgentError(f"{file}: damaged ({reason}), cannot be moved: {error.strerror}") from None
    return None


def _write(file: Path, identity: Identity) -> None:
    """Keep an identity so that a power loss leaves the whole file or none."""
    text = json.dumps({"device": identity.device, "salt": identity.salt.hex()})
    new = file.with_suffix(".new")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        new.rename(file)
        folder = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise AgentError(f"{file}: cannot be written: {error.strerror}") from None


def boot_id(root: Path = Path("/")) -> str:
    """The kernel's name for this boot.

    Where it cannot be read, one that lasts for the life of this process: the agent's restart then
    looks like a boot, and nothing is placed wrongly.
    """
    file = root / "proc/sys/kernel/random/boot_id"
    try:
        found = file.read_text("ascii").strip()
        reason = f"{shown(found)} is not a boot id"
    except (OSError, UnicodeDecodeError) as error:
        found, reason = "", str(error)
    if 0 < len(found) <= 64 and found.isprintable():
        return found
    log.warning("boot id not known, one made for this process", file=file, reason=reason)
    return "process-" + uuid7()


class ClockReader:
    """Both clocks of the device, and whether the kernel says that the wall clock can be trusted."""

    _UNSYNCHRONISED = 0x40  # STA_UNSYNC of adjtimex(2), set until a time daemon vouches

    def __init__(self) -> None:
        self._timex = bytearray(512)  # struct timex has 208 bytes
        self._adjtimex: Callable[[], int] | None = None
        try:
            # Costs 0.25 MiB; Python offers adjtimex nowhere else, and no file shows its status.
            import ctypes

            function = ctypes.CDLL(None).adjtimex
            buffer = (ctypes.c_char * len(self._timex)).from_buffer(self._timex)
            self._adjtimex = lambda: int(function(buffer))
            # status lies behind `unsigned modes` and four longs.
            self._status_at = 5 * ctypes.sizeof(ctypes.c_long)
        except (ImportError, OSError, AttributeError) as error:
            log.warning("synchronisation of the clock not known", reason=str(error))

    def read(self) -> Clock:
        """The triple that every batch carries."""
        return Clock(clock.boot_us(), clock.wall_us(), self._synchronised())

    def _synchronised(self) -> bool:
        if self._adjtimex is None:
            return False
        self._timex[:4] = bytes(4)  # modes 0: read only
        if self._adjtimex() < 0:
            return False
        status = int.from_bytes(self._timex[self._status_at : self._status_at + 4], sys.byteorder)
        return not status & self._UNSYNCHRONISED
