"""Tests of any project, measured under pytest: the `suite` fixture, and `--suite-measure` for `benchmark`."""
