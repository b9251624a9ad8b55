"""Did a kernel get slower? Stored runs as series, paired comparison of versions, steps in a series, and trust in it.

Nothing here measures in a way of its own: runs are compared by their records, versions by pairs of live workers.
"""
