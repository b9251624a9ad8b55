"""The command line's entry: `pyperf-suite` and `python -m pyperf_suite`.

The imports of the command line take a moment; who interrupts them gets a sentence and no traceback.
"""

from __future__ import annotations

import contextlib
import io
import sys


def main() -> None:
    """Run the command line; other ranks see this one before anything heavy is imported."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        from pyperf_suite.errors import UserError
        from pyperf_suite.ranks.watchdog import stand_by

        # A wrong launcher variable is reported by the command that needs it. `watch` runs somebody's command in each
        # rank, and measures with none of the others.
        with contextlib.suppress(UserError):
            if sys.argv[1:2] != ["watch"]:
                stand_by()
        from pyperf_suite.cli.main import main as command_line
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
    command_line(prog_name="pyperf-suite")


if __name__ == "__main__":
    main()
