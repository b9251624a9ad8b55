"""Findings as JUnit XML, which CI servers show as tests: a regression fails, what stayed open is skipped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from pyperf_suite.errors import printable
from pyperf_suite.history.exit_code import DEFAULT_FAIL_ON, concern
from pyperf_suite.history.finding import Finding
from pyperf_suite.render import text
from pyperf_suite.render.comparisons import change


def junit_xml(heading: str, findings: Sequence[Finding], fail_on: str = DEFAULT_FAIL_ON) -> bytes:
    """One suite with one test a finding, as UTF-8.

    What `fail_on` minds: a regression is a failure, what could not be measured an error. What stayed open is skipped
    at every level: a CI server has no word for it that would not be taken for a fault of the kernel.
    """
    concerns = [concern(finding, fail_on) for finding in findings]
    suite = ElementTree.Element(
        "testsuite",
        name=printable(heading),
        tests=str(len(findings)),
        failures=str(concerns.count("regression")),
        errors=str(concerns.count("failed")),
        skipped=str(sum(_is_skipped(finding, fail_on) for finding in findings)),
        time=f"{sum(map(_seconds, findings)):.3f}",
    )
    for finding in findings:
        suite.append(_test(finding, fail_on))
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


def _test(finding: Finding, fail_on: str) -> ElementTree.Element:
    test = ElementTree.Element(
        "testcase",
        classname=printable(finding.probe or "benchmark"),
        name=printable(finding.benchmark),
        time=f"{_seconds(finding):.3f}",
    )
    kind = {"regression": "failure", "failed": "error"}.get(concern(finding, fail_on) or "")
    if kind is not None:
        told = ElementTree.SubElement(test, kind, message=printable(finding.sentence), type=finding.verdict)
        told.text = printable(f"{finding.verdict} {text.cell(change(finding.ratio))}\n{finding.sentence}")
    elif _is_skipped(finding, fail_on):
        ElementTree.SubElement(test, "skipped", message=printable(f"{finding.verdict}: {finding.sentence}"))
    else:
        ElementTree.SubElement(test, "system-out").text = printable(finding.sentence)
    return test


def _is_skipped(finding: Finding, fail_on: str) -> bool:
    return finding.verdict in ("undecided", "failed") and concern(finding, fail_on) not in ("regression", "failed")


def _seconds(finding: Finding) -> float:
    """Time spent on the comparison, where its producer says so."""
    seconds = finding.details.get("seconds", 0.0)
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < float("inf") else 0.0
