"""Addresses to listen on, who may connect to them, and whether they are free."""

import ipaddress
import socket
from pathlib import Path

from decodewatch.collector.errors import ServerError
from decodewatch.shared.broker import warn_of_readers
from decodewatch.shared.errors import SettingsError, shown


def resolve(host: str) -> str:
    """The IP address of `listen_host`. Raises SettingsError where it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"listen_host: {shown(host)}: {error}; accepted is an address of this machine"
        ) from None
    return str(found[0][4][0])


def connectable(host: str) -> str:
    """The address under which this machine itself reaches what listens on `host`."""
    address = resolve(host)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def check_listen(host: str, *, authenticated: bool) -> None:
    """Refuse to let the network in without passwords. Raises SettingsError."""
    if not authenticated and not ipaddress.ip_address(resolve(host)).is_loopback:
        raise SettingsError(
            f"listen_host: {shown(host)} lets others in, who may then write what they like; give "
            "users_file a file of user:password lines, one a device or one for all, or listen on "
            "127.0.0.1"
        )


def check_port(host: str, port: int, name: str) -> None:
    """Raises ServerError naming the setting where a port is taken, or may not be listened on."""
    address = resolve(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, port), family=family).close()
    except OSError as error:
        raise ServerError(
            f"{name}: cannot listen on port {port} of {address}: {error.strerror}; accepted is a "
            "free port"
        ) from None


def read_users(file: Path) -> dict[str, str]:
    """Names and passwords of a users file. Raises SettingsError where it is not one."""
    warn_of_readers("users_file", file)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"users_file: {file}: cannot be read: {error}") from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not (name and colon and password and line.isprintable()) or name in users:
            # The line itself is a secret: only its number is shown.
            raise SettingsError(
                f"users_file: {file}: line {number}; accepted is user:password, each user once"
            )
        users[name] = password
    if not users:
        raise SettingsError(f"users_file: {file}: no user; accepted is one user:password a line")
    return users
