"""The probe of a user's kernel: axes as its file declares them, findings from the records alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, make_dataclass, replace
from typing import Any

from pyperf_suite.errors import UserError, offer
from pyperf_suite.findings.axes import ByProfile, Flag, crossed
from pyperf_suite.findings.data import Figure, Findings, Panel, Remark, findings
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Column, Row, Rows, grouped, series, table
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.checks import excluded_rate
from pyperf_suite.record.case import MODES, Case
from pyperf_suite.record.reading import mean_speedup
from pyperf_suite.user_kernels.declared import Described, canonical, describe, parameters_of

TOPIC = "your kernels"
# The suite's own axes of each kernel; one that has an axis of that name keeps it.
IMPLEMENTATION, MODE = "implementation", "mode"
MOST_PANELS = 6
# Factor by which a kernel that moves fewer bytes may beat a copy.
FASTER_THAN_A_COPY = 2.0
# Share of a launch, and seconds, from which a release is mentioned.
WORTH_RELEASING, WORTH_RELEASING_S = 0.1, 1e-6


class Word:
    """A value of an axis that holds numbers and words: a number where it can be read as one."""

    @staticmethod
    def parse(text: str) -> int | float | str:
        """The narrowest of whole number, number and text."""
        for kind in (int, float):
            try:
                return kind(text.strip())
            except ValueError:
                continue
        return text.strip()


def is_test(name: str) -> bool:
    """True if a user's name is of a test that pytest measured: `FILE.py::test`."""
    return "::" in name


def expanded(names: Sequence[str]) -> list[str]:
    """The names, each user's file replaced by its kernels. Raises UserError for a file that declares none."""
    kernels: list[str] = []
    for name in names:
        if name.endswith(".py"):
            kernels += [each.name for each in describe(name)]
        else:
            kernels.append(canonical(name) if ":" in name else name)
    return list(dict.fromkeys(kernels))


def user_probe(name: str) -> Probe:
    """The probe of that kernel; its file is read only for axes and cases."""
    function = name.rpartition(":")[2]
    return Probe(
        name=name,
        question=f"How fast is {function}, and which implementation is fastest?",
        topic=TOPIC,
        title=name,
        axes=functools.partial(_axes, name),
        sweep=functools.partial(_sweep, name),
        analyse=functools.partial(_analyse, name),
        group=lambda _: name,
    )


def kernel_probe(kernel: Any, question: str, topic: str, **fields: Any) -> Probe:
    """The probe of a kernel that its own module declares, with findings as of a user's unless `fields` say more."""
    usual = user_probe(f"{kernel.builder.__module__}:{kernel.name}")
    return replace(usual, **{"name": kernel.name, "question": question, "topic": topic, "title": "", **fields})


def described(name: str) -> Described:
    """Return the description of a kernel by its file. Raises UserError for a kernel that it does not declare."""
    of_file = describe(name)
    for each in of_file:
        if each.name == name:
            return each
    raise UserError(f"There is no kernel {name[:200]}: {offer(name, [each.name for each in of_file])}")


def _axes(kernel_name: str, profile: str, device: Device) -> Any:
    """The axes as a frozen dataclass of tuples, the suite's own as the last of them."""
    if is_test(kernel_name):
        raise UserError(
            f"{kernel_name} is a test, which pytest alone measures: run `pytest {kernel_name} --suite-measure`."
        )
    kernel = described(kernel_name)
    declared: list[tuple[str, Any, tuple[Any, ...]]] = []
    for name, by_profile in kernel.axes.items():
        kinds = {type(value) for each in by_profile.values() for value in each}
        values = ByProfile(**{each: tuple(values) for each, values in by_profile.items()}).of(profile, device)
        if kinds == {bool}:
            declared.append((name, tuple[Flag, ...], tuple(Flag(bool(value)) for value in values)))
        elif kinds <= {int, float}:
            number = float if float in kinds else int
            declared.append((name, tuple[number, ...], tuple(values)))  # type: ignore[valid-type]
        else:
            declared.append((name, tuple[str if kinds == {str} else Word, ...], tuple(values)))  # type: ignore[misc]
    declared.append((IMPLEMENTATION, tuple[str, ...], tuple(kernel.implementations)))
    if MODE not in kernel.axes:
        declared.append((MODE, tuple[str, ...], MODES[:1]))
    made = make_dataclass("UserAxes", [(name, kind) for name, kind, _ in declared], frozen=True)
    return made(*(values for _, _, values in declared))


def _sweep(name: str, axes: Any) -> Iterator[Case]:
    kernel = described(name)
    known = kernel.implementations
    for each in axes.implementation:
        if each not in known:
            raise UserError(f"{name} has no implementation {each!r}: {offer(each, known)}")
    parameters = parameters_of(tuple(kernel.axes))
    for values in crossed(axes):
        implementation, mode = values.pop(IMPLEMENTATION), MODES[0]
        if MODE not in kernel.axes:
            mode = values.pop(MODE)
        plain = {key: value.value if isinstance(value, Flag) else value for key, value in values.items()}
        yield Case(name, parameters(**plain), implementation, mode=mode)


def _analyse(name: str, rows: Rows) -> Findings:
    """The table of all cases, how implementations compare with the baseline, one figure."""
    ordered = Rows(sorted(rows, key=_order))
    ordered.records = rows.records
    if not ordered:
        return Findings()
    axes = list(dict.fromkeys(axis for row in ordered for axis in asdict(row.p)))
    baseline = ordered[0].reading.details.get("baseline", "")
    several = len({row.implementation for row in ordered}) > 1
    unit = "us" if max(row.seconds for row in ordered) < 1e-3 else "ms"
    # A narrow terminal leaves out axes of one value first, then rates and errors.
    sizes = {axis: len({str(_parameter(axis, row)) for row in ordered}) for axis in axes}
    columns = [
        *(Column(axis, functools.partial(_parameter, axis), priority=2 * (sizes[axis] > 1)) for axis in axes),
        Column(IMPLEMENTATION, priority=2 * several),
        *([Column(MODE)] if {row.reading.case.mode for row in ordered} != {MODES[0]} and MODE not in axes else ()),
        Column("time", lambda row: replace(row.reading.time, unit=unit), unit, priority=3),
    ]
    work = {record.case_id: record.work for record in rows.records if record.outcome == "ok"}
    for rate, amount in (("GB/s", "bytes"), ("TFLOP/s", "flop")):
        if _is_given(work, amount):
            columns.append(Column("rate", functools.partial(_rate, work, amount, rate), rate))
    if several and baseline:
        columns.append(Column(f"relative to {baseline}", functools.partial(_gain, ordered, baseline), "x", priority=3))
    if not is_test(name):
        columns.append(Column("errors", _excluded))
    return findings(
        (_doubts(row, work) for row in ordered),
        _remarks(ordered, baseline) if several else None,
        table(f"Cases of {name}", columns, ordered),
        # A session has hundreds of tests, and drawing takes longer than measuring them.
        None if is_test(name) else _figure(name, ordered, axes, work),
    )


def _order(row: Row) -> tuple[Any, ...]:
    """By the axes, numbers by size, then the baseline last."""
    values = [(isinstance(value, str), str(value) if isinstance(value, str) else "", 0.0 if isinstance(value, str)
               else float(value)) for value in asdict(row.p).values()]  # fmt: skip
    return (*values, row.implementation == row.reading.details.get("baseline"), row.implementation)


def _parameter(axis: str, row: Row) -> Any:
    value = asdict(row.p).get(axis)
    return str(value) if isinstance(value, bool | float) else value


def _rate(work: dict[str, Any], amount: str, unit: str, row: Row) -> Any:
    reported = work.get(row.reading.case.case_id, {}).get(amount)
    return row.reading.per_second(reported, unit) if reported else None


def _checked(row: Row) -> list[Mapping[str, Any]]:
    """Return each process's findings on the launches that it checked."""
    case_id, records = row.reading.case.case_id, row.rows.records
    return [each.verification for each in records if each.case_id == case_id and each.outcome == "ok"]


def _excluded(row: Row) -> str | None:
    """`< 1 in 1,011`: the share of wrong launches that the checks of all processes exclude."""
    checked = sum(each.get("launches_checked", 0) for each in _checked(row))
    doubt = "" if any(each.get("caching_checked") for each in _checked(row)) else ", caching not checked"
    return f"< 1 in {math.floor(1 / excluded_rate(checked)):,}{doubt}" if checked else None


def _doubts(row: Row, work: dict[str, Any]) -> Iterator[Remark]:
    """Yield remarks on rates beyond memory's, and on results that take long to release."""
    label, rate = row.reading.case.label, work[row.reading.case.case_id].get("bytes", 0) / row.seconds
    copied = max((each.get("copied_bytes_per_s", 0.0) for each in _checked(row)), default=0.0)
    released = max((each.get("released_s", 0.0) for each in _checked(row)), default=0.0)
    if copied and rate > FASTER_THAN_A_COPY * copied:
        message = (
            "{label}: {rate:GB/s} by the bytes that its file names, where a copy of as many moves {copied:GB/s}: they "
            "may be too many, or not all of the result was written"
        )
        yield row.remark(message, kind="caution", label=label, rate=rate, copied=copied)
    if released > max(WORTH_RELEASING * row.seconds, WORTH_RELEASING_S):
        message = "{label}: releasing its result takes {released:duration} more, which is no part of its time"
        yield row.remark(message, label=label, released=released)


def _gain(rows: Rows, baseline: str, row: Row) -> Any:
    if row.implementation == baseline:
        return None
    other = _baseline_of(rows, row, baseline)
    return None if other is None else mean_speedup([(other.reading, row.reading)])


def _baseline_of(rows: Rows, row: Row, baseline: str) -> Row | None:
    return next((each for each in rows.same_except(row, IMPLEMENTATION) if each.implementation == baseline), None)


def _who(row: Row) -> str:
    """The implementation, and the mode where it is not the usual one."""
    mode = row.reading.case.mode
    return str(row.implementation) + (f", {mode}" if mode != MODES[0] else "")


def _remarks(rows: Rows, baseline: str) -> Iterator[Remark]:
    """Each implementation over all cases that the baseline has too."""
    for who, group in grouped(rows, _who).items():
        pairs = [(other.reading, row.reading) for row in group if (other := _baseline_of(rows, row, baseline))]
        faster = mean_speedup(pairs) if group[0].implementation != baseline else None
        if faster is not None:
            yield group[0].remark(
                "{implementation} is {faster} as fast as {baseline} (mean of {cases} cases)",
                effect="faster",
                implementation=who,
                faster=faster,
                baseline=baseline,
                cases=len(pairs),
            )


def _figure(name: str, rows: Rows, axes: Sequence[str], work: dict[str, Any]) -> Figure | None:
    """Over the numeric axis with most values, a line for each implementation, a panel for each of the other axes."""
    values = {axis: {_parameter(axis, row) for row in rows} for axis in axes}
    numeric = [axis for axis in axes if all(isinstance(each, int) for each in values[axis]) and len(values[axis]) > 1]
    if not numeric:
        return None
    along = max(numeric, key=lambda axis: len(values[axis]))
    amount, unit = next(
        ((amount, unit) for amount, unit in (("flop", "TFLOP/s"), ("bytes", "GB/s")) if _is_given(work, amount)),
        ("", "ms"),
    )
    others = [axis for axis in axes if axis != along]
    panels = [
        Panel(
            ", ".join(f"{axis}={_parameter(axis, group[0])}" for axis in others) or name.rpartition(":")[2],
            along,
            "rate" if amount else "time",
            tuple(
                series(
                    implementation,
                    each,
                    lambda row: float(getattr(row.p, along)),
                    lambda row: _rate(work, amount, unit, row) if amount else row.reading.time,
                )
                for implementation, each in grouped(group, _who).items()
            ),
            x_ticks=tuple((float(each), str(each)) for each in sorted(values[along])),
            y_unit=unit,
        )
        for group in list(grouped(rows, lambda row: tuple(_parameter(axis, row) for axis in others)).values())[
            :MOST_PANELS
        ]
    ]
    what = f"{unit} given by the file" if amount else "time of one launch"
    caption = f"Each point is a case's median over processes: {what}, by {along}."
    stem = "".join(letter if letter.isalnum() else "_" for letter in name)
    return Figure(stem, name, caption, tuple((panel,) for panel in panels))


def _is_given(work: dict[str, Any], amount: str) -> bool:
    return any(each.get(amount) for each in work.values())
