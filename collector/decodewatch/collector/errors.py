"""The collector's errors: what it cannot do (exit status 1)."""

from decodewatch.shared.errors import DecodewatchError


class ServerError(DecodewatchError):
    """The broker, the database or a port is not there or does not do what it should."""
