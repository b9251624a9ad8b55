"""Hand on what planner and node, which may be absent, have for each other and for the core: click's object."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyperf_suite.extensions import Expect, OtherRecord
    from pyperf_suite.findings.probe import Probe

PACKAGE = Path(__file__).parents[1]


def _of(part: str, module: str, name: str) -> Any:
    """Import a name of a part's module; None without the part."""
    if not (PACKAGE / part).is_dir():
        return None
    return getattr(importlib.import_module(f"{PACKAGE.name}.{part}.{module}"), name)


class Parts:
    """Names of the parts, each imported when it is asked for."""

    @property
    def expected_times(self) -> Callable[[Mapping[str, Any]], Expect] | None:
        """The times that the planner's laws expect on the machine of an identity."""
        return _of("planner", "expected_times", "expected_times")

    @property
    def flop_per_token(self) -> Callable[[Path, int | None], float] | None:
        """FLOP of a training step for each token, of a model's config.json and a length of sequences."""
        return _of("planner", "commands.model_options", "flop_per_token")

    @property
    def readers(self) -> dict[str, Callable[[Path], OtherRecord]]:
        """Readers of folders that hold other records than a run's, by the name of the file that tells them."""
        read = _of("node", "watch.record", "read_watch")
        return {"watch.json": read} if read else {}

    def find_probe(self, name: str) -> Probe:
        """The probe of that name, which judges by the laws where it can."""
        from pyperf_suite.probes import find_probe

        probe = find_probe(name)
        if name != "accept":
            return probe
        analyse: Any = probe.analyse
        return replace(probe, analyse=functools.partial(analyse, laws=self.expected_times))
