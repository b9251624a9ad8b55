"""TRANSITION: findings of probes that are not ported yet hold plain text; here it becomes what renderers read."""

from __future__ import annotations

from dataclasses import replace

from pyperf_suite.spec.findings import Findings, Heading, Remark


def typed(found: Findings) -> Findings:
    """The same with remarks for sentences and headings for names of columns."""
    return replace(
        found,
        remarks=tuple(Remark("{said}", {"said": each}) if isinstance(each, str) else each for each in found.remarks),
        tables=tuple(
            replace(each, columns=tuple(Heading(name) if isinstance(name, str) else name for name in each.columns))
            for each in found.tables
        ),
    )
