"""A program that runs the agent on a device's files: its hardware, its identity, what it is.

python hardware_agent.py TREE STATE_FOLDER SOCKET
"""

import sys
from pathlib import Path

from decodewatch.agent import identity, service
from decodewatch.agent.hardware import board, serials
from decodewatch.agent.settings import AgentSettings
from decodewatch.agent.sources import open_sources
from decodewatch.agent.sources.kit.recorded import RecordedKernel
from decodewatch.shared import logs


def main() -> None:
    """Five readings and one sample a second, until stopped."""
    tree, state, socket = map(Path, sys.argv[1:])
    settings = AgentSettings(
        state_folder=state,
        socket=socket,
        broker_port=9,  # nobody listens there
        sample_interval_s=0.2,
        report_interval_s=1,
        idle_interval_s=1,
    )
    logs.setup(settings.log_level, settings.log_format)
    identity.make_state(state)
    kernel = RecordedKernel(tree)
    listener = service.open_listener(settings)
    try:
        service.Service(
            settings,
            identity.load(state, settings.device, serials.read(tree, kernel)),
            identity.boot_id(),
            listener,
            sources=open_sources(tree),
            clock=identity.ClockReader(),
            board=board.read(tree, kernel),
        ).run()
    finally:
        listener.close()


if __name__ == "__main__":
    main()
