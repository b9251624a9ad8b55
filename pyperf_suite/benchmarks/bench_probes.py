"""What `pytest --benchmark-only` runs: one item a case of every probe; `-k alignment` runs those of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyperf_suite.findings.discovery import all_probes


def _items_of(name: str, question: str) -> Callable[[Callable[[], None]], None]:
    def test(measured: Callable[[], None]) -> None:
        measured()

    test.__doc__ = question
    return pytest.mark.probe(name)(test)


for _probe in all_probes():
    if _probe.has_items:
        globals()[f"test_{_probe.name}"] = _items_of(_probe.name, _probe.question)
