"""What the scraper asks of each kind of server."""

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Protocol

from decodewatch.agent.scrape.http import Fault, Result
from decodewatch.agent.sources.kit.base import Measurement, Reading
from decodewatch.shared.records import Scalar

Command = Callable[[], list[str]]
"""The command line of the server's process; empty where it cannot be read."""


class Round(NamedTuple):
    """What one round of questions found."""

    readings: list[Reading]
    started: str | None
    """What names this life of the server, in its own words; None where it has none."""
    skipped: int
    """Lines that were not well formed."""
    advice: str | None = None
    """How the server would say more; told once to whoever runs it."""


class Said(NamedTuple):
    """What a server says it is."""

    version: str | None
    model: Mapping[str, Any]
    """Arguments of ModelSpec, by their names; empty where not even the model's name is known."""
    model_path: str | None
    """Where its model file is, as the server's process sees it."""
    settings: Mapping[str, Scalar]


class ServerKind(Protocol):
    """One kind of server. `name` is that of the setting, `engine` that of records.

    Its questions are generators: they yield the path to ask for next, are sent what came of it, and
    return what they made of it.
    """

    name: str
    engine: str
    measurements: tuple[Measurement, ...]

    def recognise(self, metrics: bytes) -> bool:
        """Whether an answer to /metrics is of this kind."""
        ...

    def ask(self, command: Command, *, idle: bool) -> Generator[str, Result, Round | Fault]:
        """One round; `idle` says that the last one found no request."""
        ...

    def describe(self, command: Command) -> Generator[str, Result, Said | Fault]:
        """What the server is."""
        ...
