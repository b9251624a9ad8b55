"""Did a kernel get slower? Stored runs as series, paired comparison of versions, steps in a series, and trust in it."""
