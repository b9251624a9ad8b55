"""What `pytest --benchmark-only` runs: one file a probe, one item a case."""
