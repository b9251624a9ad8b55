"""Benchmarks of `pytest --benchmark-only`: one item a case of every probe; `-k alignment` runs those of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyperf_suite.errors import ending_of
from pyperf_suite.probes import all_probes


def _items_of(name: str, question: str) -> Callable[[Callable[[], None]], None]:
    def test(measured: Callable[[], None]) -> None:
        measured()

    test.__doc__ = question
    return pytest.mark.probe(name)(test)


try:
    _PROBES = all_probes()
except Exception as error:
    if (ending := ending_of(error)) is None:
        raise
    raise pytest.Collector.CollectError(str(ending)) from None  # of which pytest shows the sentence alone
for _probe in _PROBES:
    if _probe.has_items:
        globals()[f"test_{_probe.name}"] = _items_of(_probe.name, _probe.question)
