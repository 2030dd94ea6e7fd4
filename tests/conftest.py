"""Fixtures that every test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import KINDS, Broker


@pytest.fixture(params=KINDS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A running broker of each kind in turn."""
    made = Broker(request.param, tmp_path).start()
    yield made
    made.stop()


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Broker]:
    """A running Mosquitto."""
    made = Broker("mosquitto", tmp_path).start()
    yield made
    made.stop()
