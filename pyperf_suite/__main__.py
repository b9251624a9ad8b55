"""`python -m pyperf_suite` is `pyperf-suite`."""

from __future__ import annotations

from pyperf_suite.cli import main

if __name__ == "__main__":
    main()
