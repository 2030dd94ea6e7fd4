"""Who this device is, which boot this is, and what its clocks say."""

import fcntl
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from decodewatch.agent.errors import AgentError
from decodewatch.shared import clock, logs
from decodewatch.shared.errors import shown
from decodewatch.shared.ids import check_device_id, is_device_id, uuid7
from decodewatch.shared.wire import Clock

log = logs.get(__name__)

FILE = "identity.json"
LOCK = "agent.lock"
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


def open_state(folder: Path) -> int:
    """Make the state folder and take its lock: one agent a folder, or numbers would be used twice.

    Returns the lock's descriptor, to be kept open. Raises AgentError.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AgentError(
            f"state_folder: {folder}: {error.strerror}; accepted is a folder that the agent may write"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 20).decode("ascii", "replace").strip()
        os.close(lock)
        raise AgentError(
            f"state_folder: {folder}: in use by another agent (pid {holder or 'unknown'})"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


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
        if is_device_id(device) and len(salt) == _SALT_BYTES:
            return Identity(device, salt, False)
        reason = f"device {shown(device)}, salt of {len(salt)} bytes"
    except (ValueError, LookupError, TypeError) as error:
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
    """Both clocks of the device, and whether the kernel says that the wall clock is synchronised."""

    _UNSYNCHRONISED = 0x40  # STA_UNSYNC of adjtimex(2), set until a time daemon vouches

    def __init__(self) -> None:
        try:
            # Costs 0.25 MiB; Python offers adjtimex nowhere else, and no file shows its status.
            import ctypes

            self._adjtimex = ctypes.CDLL(None).adjtimex
            self._buffer = ctypes.create_string_buffer(512)  # struct timex has 208 bytes
            # status lies behind `unsigned modes` and four longs.
            self._status_at = 5 * ctypes.sizeof(ctypes.c_long)
        except (ImportError, OSError, AttributeError) as error:
            log.warning("synchronisation of the clock not known", reason=str(error))
            self._buffer = None

    def read(self) -> Clock:
        """The triple that every batch carries."""
        return Clock(clock.boot_us(), clock.wall_us(), self._synchronised())

    def _synchronised(self) -> bool:
        buffer = self._buffer
        if buffer is None:
            return False
        buffer[:4] = bytes(4)  # modes 0: read only
        if self._adjtimex(buffer) < 0:
            return False
        at = self._status_at
        status = int.from_bytes(buffer[at : at + 4], sys.byteorder)
        return not status & self._UNSYNCHRONISED
