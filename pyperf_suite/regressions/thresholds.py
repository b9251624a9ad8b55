"""How much slower is tolerated, by `[tool.pyperf_suite.regressions]` of a pyproject.toml, and what fails a job.

[tool.pyperf_suite.regressions]
margin = "1 %"

[tool.pyperf_suite.regressions.margins]
"tile_wave" = "3 %"                  # a probe
"matmul[native * dtype=bfloat16*]" = 0.02   # labels, where * stands for anything
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError

# Margin unless the user gives another: the only place that says 1 %.
MARGIN = 0.01
# Reasons for an exit code other than 0: each level has all of the one before it, and one more.
FAIL_ON = ("never", "slower", "probably-slower", "failed", "undecided")
DEFAULT_FAIL_ON = "undecided"
TABLE = "tool.pyperf_suite.regressions"
_KEYS = ("margin", "margins")


@dataclass(frozen=True)
class Thresholds:
    """Margins of a project; `margins` maps a probe or a pattern of labels to a share, in the file's order."""

    margin: float = MARGIN
    margins: Mapping[str, float] = field(default_factory=dict)

    def margin_of(self, probe: str, label: str, requested: float | None = None) -> float:
        """The margin of a benchmark as a share of its time.

        `requested` on the command line wins; then the last pattern of the file that matches the probe's name or the
        label; then the file's own margin.
        """
        if requested is not None:
            return requested
        for pattern in reversed(list(self.margins)):
            if matches(pattern, probe) or matches(pattern, label):
                return self.margins[pattern]
        return self.margin


LARGEST_BYTES = 16 * 2**20


def load_thresholds(folder: Path | None = None) -> Thresholds:
    """The thresholds in the pyproject.toml of a folder, by default the current one; the defaults where it has none.

    Raises UserError where the file cannot be read, or says something that is not a threshold.
    """
    path = (folder or Path()) / "pyproject.toml"
    table = _table(path, TABLE)
    if table is None:
        return Thresholds()
    if not isinstance(table, dict):
        raise UserError(f"{path}: {TABLE} is {table!r}, but is a table with {', '.join(_KEYS)}.")
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise UserError(f"{path}: [{TABLE}] has no key {unknown[0]!r}: it has {', '.join(_KEYS)}.")
    margins = table.get("margins", {})
    if not isinstance(margins, dict):
        raise UserError(f"{path}: [{TABLE}.margins] is {margins!r}, but maps probes or labels to margins.")
    return Thresholds(
        _share(path, f"margin of [{TABLE}]", table.get("margin", MARGIN)),
        {name: _share(path, f"[{TABLE}.margins] {name!r}", value) for name, value in margins.items()},
    )


def load_setting(name: str, default: bool) -> bool:
    """A switch in `[tool.pyperf_suite]` of the pyproject.toml here. Raises UserError if it is not true or false."""
    path, suite = Path("pyproject.toml"), TABLE.rpartition(".")[0]
    table = _table(path, suite)
    value = table.get(name, default) if isinstance(table, dict) else default
    if not isinstance(value, bool):
        raise UserError(f"{path}: [{suite}] {name} is {value!r}: write true or false.")
    return value


def _table(path: Path, name: str) -> Any:
    """A table of a TOML file, empty where the file has none; None where there is no file."""
    try:
        table: Any = files.parse_toml(files.read_text(path, LARGEST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path}, where margins and `audit` may stand, cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, where margins and `audit` may stand, is not TOML: {error}.") from None
    for part in name.split("."):
        table = table.get(part, {}) if isinstance(table, dict) else {}
    return table


def _share(path: Path, name: str, value: Any) -> float:
    try:
        return parse_share(value)
    except ValueError as reason:
        raise UserError(f"{path}: {name}: {reason}.") from None


def parse_share(value: Any) -> float:
    """A share from `"1 %"`, `"1%"`, `"0.01"` or 0.01. Raises ValueError for what is not above 0 and below 1.

    >>> parse_share("2.5 %")
    0.025
    """
    text = str(value).strip()
    try:
        if isinstance(value, bool):
            raise ValueError
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a share such as 1 % or 0.01") from None
    if not 0 < share < 1:
        raise ValueError(f"{text[:40]!r} is not between 0 and 100 %; write 1 % or 0.01")
    return share


def selects(pattern: str | None, probe: str, label: str, case_id: str) -> bool:
    """Return True if there is no pattern, or it means that benchmark: its case, or a part of its probe and label."""
    return pattern in (None, case_id) or matches(f"*{pattern}*", f"{probe} {label}")


def matches(pattern: str, text: str) -> bool:
    """True if text matches a pattern where * is any text and ? any character; brackets, as in labels, are text."""
    # Not an expression of our own: of one with many stars `re` tries every way to share out the text.
    return fnmatchcase(text, pattern.replace("[", "[[]"))
