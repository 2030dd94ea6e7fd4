"""The agent of decodewatch, and what an application imports to be watched by it.

An application needs no more than `from decodewatch.agent import DecodeMonitor, ModelSpec`; see
`decodewatch.agent.wrapper.monitor`.
"""

from decodewatch.agent.wrapper.monitor import DecodeMonitor, Session
from decodewatch.agent.wrapper.turn import Streamer, Turn
from decodewatch.shared.model import ModelError, ModelSpec

__all__ = ["DecodeMonitor", "ModelError", "ModelSpec", "Session", "Streamer", "Turn"]
