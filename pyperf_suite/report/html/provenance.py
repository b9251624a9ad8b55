"""Where figures came from: the command that measures the same again, and the file of records."""

from __future__ import annotations

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
