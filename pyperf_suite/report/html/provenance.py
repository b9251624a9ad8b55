"""Where figures came from: the command that measures the same again, and the file of records."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pyperf_suite.report.html.escape import text


@dataclass(frozen=True)
class Source:
    """A command, and the records' path within the results folder; `records` is empty for what nothing was measured."""

    command: str
    records: str = ""

    def drawn(self) -> str:
        """The line below a figure."""
        records = f' <span class="from">from <code>{text(self.records)}</code></span>' if self.records else ""
        return f'<p class="source"><code>{text(self.command)}</code>{records}</p>'


def command_of(probe: str, profile: str, device: str, seed: int) -> str:
    """The command that runs the probe alike; axes that were replaced are not known, and the records have them.

    >>> command_of("tile_wave", "standard", "cpu", 3)
    'pyperf-suite run tile_wave --profile standard --device cpu --seed 3'
    """
    words = ["pyperf-suite", "run", probe]
    words += ["--profile", profile] if profile else []
    words += ["--device", device] if device else []
    words += ["--seed", str(seed)] if seed else []
    return shlex.join(words)
