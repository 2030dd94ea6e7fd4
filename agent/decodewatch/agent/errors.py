"""The errors of the agent, below those of `decodewatch.shared.errors`."""

from decodewatch.shared.errors import DecodewatchError


class AgentError(DecodewatchError):
    """The agent cannot start or go on; the command exits with status 1."""
