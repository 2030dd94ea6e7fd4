"""What lives in the application: it stamps the steps of its loop and tells the agent.

`monitor` and `turn` are what a user calls, `streams` the watched iterators: nothing in them
does more a step than a timestamp and an append. `course`, `tally` and `vitals` make the turn's
record of that. `link` is the one thread, `channel` its connection to the agent and what is not
acknowledged yet.
"""
