"""Propose dimensions that would be faster on a GPU, and say why, from laws or from measurements.

Nothing here prints or draws; the answers are findings, as those of probes are.
"""
