"""Programs that print what a library knows, so that the agent does not load it itself.

Each is run by its path and imports nothing of decodewatch; see `decodewatch.agent.sources.kit.
helper`.
"""
