"""Fixtures that every test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.brokers import KINDS, Broker

# A busy machine makes any example slow now and then.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


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
