"""The life of a result: case, record, journal, time at one clock, reading, and ratios with their intervals.

    Case ─▶ Record (one process) ─▶ journal ─▶ Reading (all processes) ─▶ Ratio of two readings

Nothing here measures or knows what an operator does.
"""
