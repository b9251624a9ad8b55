"""Did a kernel get slower? Stored runs as series, paired comparison of two versions, steps in a series, and trust in it.

Nothing here is a measurement of its own kind: runs are compared by their records, and versions by pairs of live workers.
"""
