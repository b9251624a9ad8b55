"""The command line's entry: `pyperf-suite` and `python -m pyperf_suite`.

The imports of the command line take a moment; who interrupts them gets a sentence and no traceback.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from pyperf_suite.cli import main as command_line
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
    command_line(prog_name="pyperf-suite")


if __name__ == "__main__":
    main()
