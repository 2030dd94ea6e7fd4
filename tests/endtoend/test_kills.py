"""Nothing that the agent acknowledged is lost, whoever is killed, and nothing is stored twice."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.brokers import KINDS
from support.system import System
from support.waiting import until

from decodewatch.shared import tables

KILLED_PARTS = (("agent",), ("broker",), ("collector",), ("agent", "broker", "collector"))
KILLS = 30  # of each kind of broker


@pytest.fixture(name="system", params=KINDS)
def _system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[System]:
    system = System(request.param, tmp_path).start()
    try:
        until(system.turns_stored, 30, "the first turn is stored")
        yield system
    finally:
        system.close()


def finish(system: System) -> None:
    """Let the application end in good order, and check that everything arrived once."""
    assert system.application.stop(70) == 0, "the agent did not acknowledge every turn"
    system.expect_all_turns(60)
    stored = system.turns_stored()
    assert len(stored) == len(set(stored))
    assert set(stored) == system.turns_ended()
    missing = until_complete(system)
    assert missing == [], f"streams with holes: {missing}"


def until_complete(system: System) -> list[str]:
    """Streams that still have holes after a while."""
    holes = sa.select(tables.stream.c.stream).where(
        tables.stream.c.watermark < tables.stream.c.highest
    )
    deadline = time.monotonic() + 30
    while (found := system.rows(holes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.mark.slow
def test_every_turn_arrives_once_though_parts_are_killed_at_random(system: System) -> None:
    generator = random.Random(20_261_129)
    for kill in range(KILLS):
        parts = KILLED_PARTS[kill % len(KILLED_PARTS)]
        time.sleep(generator.uniform(0.2, 2.0))
        for name in generator.sample(parts, len(parts)):
            system.part(name)[0]()
        time.sleep(generator.choice((0, generator.uniform(0, 1))))
        for name in generator.sample(parts, len(parts)):
            system.part(name)[1]()
        assert system.application.runs(), system.application.log.read_text()
    finish(system)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["mosquitto"], indirect=True)
def test_nothing_is_lost_while_the_broker_is_gone_for_two_minutes(system: System) -> None:
    system.broker.kill()
    before = len(system.turns_ended())
    time.sleep(120)
    assert len(system.turns_ended()) > before + 1000, "the application runs on"
    system.broker.start()
    finish(system)


@pytest.mark.parametrize("system", ["mosquitto"], indirect=True)
def test_the_application_runs_on_without_an_agent_and_its_turns_arrive_later(
    system: System,
) -> None:
    system.agent.kill()
    before = len(system.turns_ended())
    until(lambda: len(system.turns_ended()) > before + 100, 30, "100 turns without an agent")
    system.agent.start()
    finish(system)
