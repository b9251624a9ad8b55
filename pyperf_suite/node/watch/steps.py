"""The steps of a watched job, as its `watch_step` calls or the lines of its log say, and their rates."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.user_kernels.api import MARK_FORMAT

GROUPS = ("seconds", "ms", "tokens", "step")
MOST_STEPS = 100_000
_MARK = struct.Struct(MARK_FORMAT)


@dataclass
class EndedSteps:
    """The newest steps of one rank: how long each took, their tokens, and when the first and the last ended."""

    seconds: list[float] = field(default_factory=list)
    tokens: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    number: float | None = None

    def ended(
        self, at_s: float, tokens: float = 0.0, seconds: float | None = None, number: float | None = None
    ) -> None:
        """A step, or those since the last line with a number, ended at that time. The first tells no duration."""
        if self.first_s is None:
            self.first_s = at_s if seconds is None else at_s - seconds
        if seconds is None and self.last_s:
            count = number - self.number if number is not None and self.number is not None else 1.0
            seconds = (at_s - self.last_s) / count if count > 0 else None
        if self.last_s or seconds is not None:
            self.tokens += tokens
        if seconds is not None:
            self.seconds.append(seconds)
            if len(self.seconds) > MOST_STEPS:
                del self.seconds[: MOST_STEPS // 2]
        self.last_s, self.number = at_s, number

    @property
    def tokens_per_s(self) -> float | None:
        elapsed_s = self.last_s - (self.first_s or 0.0)
        return self.tokens / elapsed_s if self.tokens and elapsed_s > 0 else None

    def quantile(self, share: float) -> float:
        """A quantile of the steps' seconds; the caller knows that there are some."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class MarkReader:
    """Reads what `watch_step` of the job's processes appended to files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def read(self, steps: dict[int, EndedSteps], rank_of: Mapping[int, int]) -> None:
        """Add the new steps to those of their ranks, as `rank_of` has them by process or else the process itself."""
        for path in sorted(self._folder.glob("*.steps")):
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                content = file.read()
            whole = len(content) - len(content) % _MARK.size
            self._read[path.name] = self._read.get(path.name, 0) + whole
            message, _, process = path.stem.partition("-")
            rank = rank_of.get(int(process), int(message))
            for at_s, tokens in _MARK.iter_unpack(content[:whole]):
                steps.setdefault(rank, EndedSteps()).ended(at_s, tokens)


class LogReader:
    """Finds steps in the lines of a log by a regular expression."""

    def __init__(self, pattern: str) -> None:
        """Raises UserError for what is no regular expression, or has no group that says something of a step."""
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise UserError(f"--step-pattern {pattern[:80]!r} is not a regular expression: {error}.") from None
        names = self._pattern.groupindex.keys()
        if not self._pattern.groups or (names and not names & {*GROUPS}):
            raise UserError(
                f"--step-pattern {pattern[:80]!r} has no group for what a line says of a step: name one of "
                f"{', '.join(f'(?P<{name}>...)' for name in GROUPS)}; one group without a name is the seconds."
            )
        self._unread = b""

    def feed(self, content: bytes, steps: EndedSteps) -> None:
        """Take what the log has grown by. A carriage return ends a line too, as progress bars write it."""
        *lines, self._unread = re.split(rb"[\r\n]", self._unread + content)
        self._unread = self._unread[-4096:]
        for line in lines:
            found = self._pattern.search(line[:4096].decode("utf-8", "replace"))
            if found:
                names = found.groupdict() if self._pattern.groupindex else {"seconds": found[1]}
                message = {name: _number(text) for name, text in names.items() if text is not None}
                seconds = message.get("seconds")
                if seconds is None and message.get("ms") is not None:
                    seconds = message["ms"] / 1e3  # type: ignore[operator]
                steps.ended(time.monotonic(), message.get("tokens") or 0.0, seconds, message.get("step"))


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


def summary(
    steps: dict[int, EndedSteps], flop_per_token: float | None, peak_flop_per_s: float | None, ranks: int
) -> dict[str, Any]:
    """Steps' percentiles of each rank, tokens/s of all ranks together, FLOP/s, and their share of all GPUs' peak."""
    counted = {rank: each for rank, each in steps.items() if each.seconds}
    if not counted:
        return {}
    rates = [each.tokens_per_s for each in counted.values() if each.tokens_per_s]
    found: dict[str, Any] = {
        "ranks": {
            rank: {"steps": len(each.seconds), **{f"p{n}_s": each.quantile(n / 100) for n in (50, 90, 99)}}
            for rank, each in sorted(counted.items())
        }
    }
    if rates:
        found["tokens_per_s"] = sum(rates)
        if flop_per_token:
            found["flop_per_s"] = sum(rates) * flop_per_token
            if peak_flop_per_s:
                found["mfu"] = found["flop_per_s"] / (peak_flop_per_s * max(1, ranks))
    return found
