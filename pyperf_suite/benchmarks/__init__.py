"""Benchmarks of `pytest --benchmark-only`: one file a probe, one item a case."""
