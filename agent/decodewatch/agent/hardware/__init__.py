"""What device this is, and how much its memory can carry.

`board` reads what it is, `serials` what only this one piece of hardware has, `bandwidth` measures
its memory, `ceiling` says what decoding is compared with, and `watch` tells all of it and what of
it changed.
"""
