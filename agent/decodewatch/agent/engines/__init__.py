"""Adapters for engines that run inside the application, one a file.

Each has a function that measures one turn, and `monitor(...)`, which makes the `DecodeMonitor` of
what the engine says of its model and its settings. None imports its engine: the application has
done so, and hands it over. Where an adapter cannot read what it wants to know, it leaves that out
with a word to the log: it never raises into the application. `docs/engines.md` shows each in use.
"""
