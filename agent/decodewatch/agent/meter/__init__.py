"""The meter: what a stream of an inference server says of its turn.

`framing` cuts bytes into events, `encoding` inflates them where they are compressed, `dialects`
says what an event of each API means, `meter` adds them up, and `recorded` reads streams from files.
No text of a prompt or an answer is kept.
"""
