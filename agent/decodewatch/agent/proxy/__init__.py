"""The proxy: stands before an inference server, passes bytes on, and measures turns by a copy.

`tunnel` moves bytes; `requests` finds the heads of requests in them and puts the upstream's name
into Host, `answers` reads along in what the server says, by `heads` and `bodies`; `turns` gives a
copy of the answers to the meter and its steps to the agent, later than the bytes went on; `server`
finds out who the server is, `orphans` whether it works on for nobody. `command` joins them.

Nothing of a prompt or an answer is kept, logged or sent.
"""
