"""What to do about it: dimensions that would be faster on a GPU, and why, from laws or from measurements.

Nothing here prints or draws; the answers are findings, as those of probes are.
"""
