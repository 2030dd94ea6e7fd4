"""Who this device is, which boot this is, and what its clocks say."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from decodewatch.agent import state_files
from decodewatch.agent.android import is_android
from decodewatch.agent.errors import AgentError
from decodewatch.shared import clock, logs
from decodewatch.shared.errors import shown
from decodewatch.shared.ids import check_device_id, is_device_id, uuid7
from decodewatch.shared.wire import Clock

log = logs.get(__name__)

FILE = "identity.json"
_SALT_BYTES = 16
# Serial numbers can be guessed, MAC addresses above all: each guess costs as much as this, about
# 0.1 to 0.5 s on a device.
_ROUNDS = 200_000
_PROJECT_SALT = b"decodewatch device 1"
_ID_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """The device's id and the salt of its session hashes; `made` where both are new.

    `kind` says which of the hardware's numbers the device is recognised by, and `mark` is a hash of
    that, with this salt: it is no use elsewhere. None where the hardware has none. `previous` is
    the id that the state folder had on other hardware: it came along with a disk image, or with a
    disk.
    """

    device: str
    salt: bytes
    made: bool
    kind: str | None = None
    mark: str | None = None
    previous: str | None = None

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


def load(
    folder: Path,
    device: str | None,
    serials: Mapping[str, Sequence[str]] = MappingProxyType({}),
    fleet_salt: str = "",
) -> Identity:
    """The identity that the state folder keeps; made and kept there the first time.

    `device` is the setting, which wins. `serials` are the hardware's numbers that can be read now,
    by their kind, the best first: the id is a hash of one, so that it is the same after the state
    folder is lost, and another on another board. A folder that was made on other hardware gives a
    new identity. What cannot be read now changes nothing: an agent that root started once keeps its
    id as another user. Raises SettingsError where the setting cannot name a device, and AgentError
    where the file cannot be read, or made where there is none. A damaged file is set aside.
    """
    if device is not None:
        check_device_id(device)
    # Of two that start at once in a new folder, the second gets what the first has made.
    with state_files.alone(folder):
        return _load(folder / FILE, device, serials, fleet_salt)


def _load(
    file: Path, device: str | None, serials: Mapping[str, Sequence[str]], fleet_salt: str
) -> Identity:
    kept = _read(file)
    if kept is None:
        made = _make(device, serials, fleet_salt, None)
        _write(file, made)
        return made
    if kept.kind is None:
        found = _recognised_by(serials, kept.salt)
        if found is not None:
            kept = replace(kept, kind=found[0], mark=found[1])
            _write_if_possible(file, kept)
    elif kept.kind in serials and not any(
        _mark(kept.salt, kept.kind, number) == kept.mark for number in serials[kept.kind]
    ):
        made = _make(device, serials, fleet_salt, kept.device)
        log.warning(
            "state folder is of other hardware, the device gets its own identity",
            previous=kept.device,
            device=made.device,
            known_by=kept.kind,
        )
        _write_if_possible(file, made)
        return made
    return replace(kept, device=device or kept.device)


def _make(
    device: str | None,
    serials: Mapping[str, Sequence[str]],
    fleet_salt: str,
    previous: str | None,
) -> Identity:
    salt = os.urandom(_SALT_BYTES)
    found = _recognised_by(serials, salt)
    if found is None:
        return Identity(device or "dev-" + uuid7()[-12:], salt, True, previous=previous)
    kind, mark = found
    if device is None:
        # The same on every installation of this board, so nothing random is in it.
        salted = _PROJECT_SALT + b"\0" + fleet_salt.encode()
        device = "dev-" + _mark(salted, kind, serials[kind][0])[:_ID_DIGITS]
    return Identity(device, salt, True, kind, mark, previous)


def _recognised_by(serials: Mapping[str, Sequence[str]], salt: bytes) -> tuple[str, str] | None:
    for kind, numbers in serials.items():
        return kind, _mark(salt, kind, numbers[0])
    return None


def _mark(salt: bytes, kind: str, number: str) -> str:
    """What stands for a serial number, which it cannot be read from: see `_ROUNDS`."""
    return hashlib.pbkdf2_hmac("sha256", f"{kind}\0{number}".encode(), salt, _ROUNDS, 16).hex()


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
        kind, mark = value.get("kind"), value.get("mark")
        if (
            isinstance(device, str)
            and is_device_id(device)
            and len(salt) == _SALT_BYTES
            and (kind is None) == (mark is None)
            and all(word is None or isinstance(word, str) for word in (kind, mark))
        ):
            return Identity(device, salt, False, kind, mark)
        reason = f"device {shown(device)}, salt of {len(salt)} bytes, kind {shown(kind)}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    aside = file.with_suffix(".damaged")
    log.error("identity file damaged, the device gets a new one", reason=reason, kept_as=aside)
    try:
        file.rename(aside)
    except OSError as error:
        raise AgentError(f"{file}: damaged ({reason}), cannot be moved: {error.strerror}") from None
    return None


def _write(file: Path, identity: Identity) -> None:
    """Keep an identity. Raises AgentError."""
    kept = {
        "device": identity.device,
        "salt": identity.salt.hex(),
        "kind": identity.kind,
        "mark": identity.mark,
    }
    text = json.dumps({name: value for name, value in kept.items() if value is not None})
    state_files.replace(file, text.encode(), 0o600)


def _write_if_possible(file: Path, identity: Identity) -> None:
    """Keep what came to be known of an identity; a full disk does not keep the agent from running,
    it comes to know the same at its next start."""
    try:
        _write(file, identity)
    except AgentError as error:
        log.warning("identity not kept", reason=str(error))


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
        if is_android():
            # Its kernels end an app that asks, though it only asks (SIGSYS).
            log.info("synchronisation of the clock not known", reason="Android does not tell apps")
            return
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
