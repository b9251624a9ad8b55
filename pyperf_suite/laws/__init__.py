"""Closed forms of what a kernel should cost: pure functions on numpy arrays.

Nothing here measures, reads a file or knows a device; fitted constants come in as arguments.
"""
