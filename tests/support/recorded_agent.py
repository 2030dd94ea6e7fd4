"""A program that runs the agent on a recorded device: its hardware, and this machine's processes.

python recorded_agent.py TREE STATE_FOLDER SOCKET
"""

import sys
from pathlib import Path

from decodewatch.agent import identity, service
from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources import open_sources
from decodewatch.shared import logs


def main() -> None:
    """Five readings a second, and a sample a second, until stopped."""
    tree, state, socket = map(Path, sys.argv[1:])
    settings = AgentSettings(
        device="dev-test",
        state_folder=state,
        socket=socket,
        broker_port=9,  # nobody listens there
        sample_interval_s=0.2,
        report_interval_s=1,
        idle_interval_s=1,
    )
    logs.setup(settings.log_level, settings.log_format)
    identity.make_state(state)
    who = identity.load(state, settings.device)
    listener = service.open_listener(settings)
    try:
        service.Service(
            settings,
            who,
            identity.boot_id(),
            listener,
            sources=open_sources(tree),
            clock=identity.ClockReader(),
        ).run()
    finally:
        listener.close()


if __name__ == "__main__":
    main()
