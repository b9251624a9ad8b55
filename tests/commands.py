"""The command line, in the process of a test."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from pyperf_suite.cli.main import main


def invoke(*words: object, **how: Any) -> Result:
    """Run `pyperf-suite WORDS`: what it prints, and its exit code; whatever is no sentence of it is raised."""
    return CliRunner().invoke(main, [*map(str, words)], catch_exceptions=False, **how)
