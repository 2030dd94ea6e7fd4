"""Verdicts: plain values in, a verdict with its evidence out; no clock, no database, no drawing.

`throttle` says what holds the clocks of a device down, by what `showing` makes of its readings.
"""
