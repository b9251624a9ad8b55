"""How far a machine's verdicts can be trusted, measured: code compared with itself, and with itself slowed down.

A selfcheck is `<results>/<machine>/selfcheck-<stamp>/`: selfcheck.json says what was asked, comparisons.jsonl has a
line for each comparison made. Rates are counted from those lines; the summary beside the settings is for other readers.
"""

from __future__ import annotations

import datetime
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.history.pairs.ab import PairJournal, WritePair, comparison_folder
from pyperf_suite.history.pairs.arms import PairedCase
from pyperf_suite.history.verdict import CONFIDENCE, WORDS, Judgement, Proportion, Word
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.measure.estimates import median_interval
from pyperf_suite.runner.record import Case
from pyperf_suite.runner.results import LARGEST_MANIFEST_BYTES
from pyperf_suite.spec.findings import Cell, Findings, Quantity, Remark, findings, quantity, remark
from pyperf_suite.spec.rows import Column, grouped, table
from pyperf_suite.workloads.attention import AttentionParameters
from pyperf_suite.workloads.matmul import MatmulParameters

MANIFEST = "selfcheck.json"
COMPARISONS = "comparisons.jsonl"
SCHEMA_VERSION = 1

# From so many comparisons of identical code on, a newer selfcheck speaks for the machine in place of an older one.
ENOUGH = 50


@dataclass(frozen=True)
class Comparison:
    """One comparison of the code with itself, the new arm slowed down by the share `shift`; 0 is A/A.

    `number` counts the comparisons of one shift. `log_ratios` has log(new time / old time) of each pair, `ratio` what
    was concluded from them (None where nothing could be measured, with the `reason`), `machine` the time that a
    hypervisor took and the clocks.
    """

    shift: float
    number: int
    probe: str
    case_id: str
    label: str
    verdict: Word
    ratio: float | None
    seconds: float
    log_ratios: tuple[float, ...]
    started_at: str
    commit: str = ""
    reason: str = ""
    machine: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "log_ratios": [round(log_ratio, 6) for log_ratio in self.log_ratios]}

    @classmethod
    def from_json(cls, data: Any) -> Comparison:
        """The inverse of `to_json`. Raises ValueError for what is not a comparison."""
        try:
            known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
            found = cls(**known | {"log_ratios": tuple(float(item) for item in data["log_ratios"])})
            ratio = 1.0 if found.ratio is None else found.ratio
            figures = (found.shift, found.seconds, found.number, ratio, *found.log_ratios)
            if not all(math.isfinite(figure) for figure in figures) or found.verdict not in WORDS:
                raise ValueError("figures that are not finite, or an unknown verdict")
        except (TypeError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a comparison: {error}") from None
        return found


@dataclass(frozen=True)
class Seconds:
    """How long comparisons took: the median with its 95 % interval, and what nine of ten stayed within."""

    median: float
    low: float
    high: float
    p90: float


@dataclass(frozen=True)
class Selfcheck:
    """What was asked (`settings`) and every comparison made so far."""

    path: Path
    settings: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]

    @property
    def shifts(self) -> list[float]:
        return sorted({comparison.shift for comparison in self.comparisons})

    @property
    def margin(self) -> float:
        return float(self.settings["rule"]["margin"])

    def measured(self, shift: float) -> list[Comparison]:
        return [each for each in self.comparisons if each.shift == shift and each.verdict != "failed"]

    def rate(self, shift: float, *verdicts: Word) -> Proportion:
        measured = self.measured(shift)
        return Proportion(sum(each.verdict in verdicts for each in measured), len(measured))

    @property
    def false_alarms(self) -> Proportion:
        return self.rate(0.0, "slower", "faster")

    def detected(self, shift: float) -> Proportion:
        return self.rate(shift, "slower")

    def seconds(self, shift: float) -> Seconds | None:
        """How long the comparisons at a shift took; None where there was none."""
        spent = [each.seconds for each in self.measured(shift)]
        if not spent:
            return None
        interval = median_interval(spent, CONFIDENCE, effective=len(spent))
        return Seconds(statistics.median(spent), interval.low, interval.high, float(np.quantile(spent, 0.9)))

    def change(self, shift: float) -> float | None:
        """The median of the slowdowns concluded at a shift, as a share: whether what was injected arrived."""
        ratios = [each.ratio for each in self.measured(shift) if each.ratio is not None]
        return statistics.median(ratios) - 1 if ratios else None

    def sentence(self) -> str:
        """One line for whoever reads a verdict of this machine: how often such verdicts are wrong, and miss."""
        identical = self.false_alarms
        called = (
            f"On this machine a selfcheck called identical code slower or faster in {identical} of {identical.tries} "
            f"comparisons (margin {100 * self.margin:.3g} %)"
        )
        slowed = [shift for shift in self.shifts if shift > 0 and self.detected(shift).tries]
        found = [f"{100 * shift:.3g} % in {self.detected(shift)} of {self.detected(shift).tries}" for shift in slowed]
        return f"{called}, and found an injected slowdown of {', of '.join(found)}." if found else f"{called}."

    def to_json(self) -> dict[str, Any]:
        return {
            "false_alarms": _plain(self.false_alarms),
            "shifts": [
                {
                    "shift": shift,
                    "failed": sum(each.shift == shift and each.verdict == "failed" for each in self.comparisons),
                    "verdicts": {verdict: _plain(self.rate(shift, verdict)) for verdict in WORDS[:-1]},
                    "change": self.change(shift),
                    "seconds": vars(seconds) if (seconds := self.seconds(shift)) else None,
                }
                for shift in self.shifts
            ],
        }


def _plain(rate: Proportion) -> dict[str, float | int | None]:
    share = rate.value if rate.tries else None
    return {"hits": rate.hits, "tries": rate.tries, "value": share, "low": rate.low, "high": rate.high}


def open_selfcheck(path: Path) -> Selfcheck:
    """The selfcheck in that folder. Raises UserError where it is not one, or its settings are damaged.

    A line that a killed run left unfinished is left out. Of two for the same comparison, as where a failed one was
    tried again, the first that could be made counts.
    """
    try:
        settings = json.loads(files.read_text(path / MANIFEST, LARGEST_MANIFEST_BYTES))
        lines = files.read_bytes(path / COMPARISONS).splitlines() if (path / COMPARISONS).exists() else []
    except OSError as error:
        raise UserError(f"{path} is not the folder of a selfcheck: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path / MANIFEST} is damaged: it does not hold JSON.") from None
    if not isinstance(settings, dict) or settings.get("schema_version") != SCHEMA_VERSION:
        raise UserError(f"{path / MANIFEST} is not of a selfcheck that this version can read.")
    found: dict[tuple[float, int], Comparison] = {}
    for line in lines:
        try:
            comparison = Comparison.from_json(json.loads(line))
        except (ValueError, RecursionError):
            continue
        place = (comparison.shift, comparison.number)
        if place not in found or found[place].verdict == "failed":
            found[place] = comparison
    return Selfcheck(path, settings, tuple(found.values()))


def selfchecks(results: Path, machine: str) -> list[Selfcheck]:
    """All of a machine's (its slug) that can be read, oldest first."""
    found = []
    for manifest in sorted((results / machine).glob(f"selfcheck-*/{MANIFEST}")):
        try:
            found.append(open_selfcheck(manifest.parent))
        except UserError:
            continue  # a damaged one is no reason to hide the others
    return found


def latest_selfcheck(results: Path, machine: str) -> Selfcheck | None:
    """The selfcheck that speaks for a machine (its slug); None if no run compared identical code.

    That is the newest with enough comparisons of identical code, else the one with most: a short trial does not take
    the place of an hour's measurement.
    """
    found = [each for each in selfchecks(results, machine) if each.false_alarms.tries]
    enough = [each for each in found if each.false_alarms.tries >= ENOUGH]
    if enough:
        return enough[-1]
    return max(found, key=lambda each: each.false_alarms.tries, default=None)


# Compares a case with itself slowed down by a share: case, share, seed, and what each pair is written to.
Compare = Callable[[PairedCase, float, int, WritePair], Judgement]


@dataclass(frozen=True)
class PlannedComparison:
    """One comparison to be made; `shift` is the injected slowdown as a share."""

    shift: float
    number: int
    case: PairedCase


def planned(counts: Mapping[float, int], cases: Sequence[PairedCase], seed: int) -> list[PlannedComparison]:
    """So many comparisons of each shift, spread evenly over the cases and, for each shift, over the whole time.

    Wherever it is cut, every shift has had its share, and the machine's hours fall on all alike.
    """
    chance = random.Random(seed)
    timed = [
        ((number + chance.random()) / count, PlannedComparison(shift, number, cases[(number + first) % len(cases)]))
        for first, (shift, count) in enumerate(sorted(counts.items()))
        for number in range(count)
    ]
    return [each for _, each in sorted(timed, key=lambda item: item[0])]


def start(results: Path, machine: str, settings: Mapping[str, Any]) -> Selfcheck:
    """A new selfcheck's folder. Raises UserError where the results folder cannot be written."""
    manifest = {"schema_version": SCHEMA_VERSION, "machine": machine, **settings}
    return open_selfcheck(comparison_folder(results, machine, manifest, kind="selfcheck"))


def resumable(results: Path, machine: str, settings: Mapping[str, Any]) -> Selfcheck:
    """The newest selfcheck of the same settings, to go on with. Raises UserError where there is none."""
    same = [each for each in selfchecks(results, machine) if _is_same(each.settings, settings)]
    if not same:
        raise UserError(
            f"There is no selfcheck of the same benchmarks, rule and budget to resume in {results / machine}: "
            "start one without --resume."
        )
    return same[-1]


def _is_same(stored: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    plain = json.loads(json.dumps(settings))
    return all(stored.get(name) == plain[name] for name in ("device", "rule", "budget_s", "cases"))


def make_comparisons(
    selfcheck: Selfcheck,
    plan: Sequence[PlannedComparison],
    compare: Compare,
    *,
    seed: int = 0,
    commit: str = "",
    time_limit_s: float | None = None,
    progress: Callable[[int, int, Comparison], None] | None = None,
) -> Selfcheck:
    """Make those of the plan that the selfcheck does not hold yet, until the time limit; return all there are.

    None begins after the limit, so the last may end later by its own budget. What was made before an interruption is
    kept. Raises UserError where the disk refuses a line, or another process is writing this selfcheck.
    """
    begin = time.monotonic()
    done = {(each.shift, each.number) for each in selfcheck.comparisons if each.verdict != "failed"}
    path = selfcheck.path / COMPARISONS
    with _alone_with(path), PairJournal(path) as write:
        for position, each in enumerate(plan, start=1):
            if (each.shift, each.number) in done:
                continue
            if time_limit_s is not None and time.monotonic() - begin >= time_limit_s:
                break
            comparison = _made(
                each, compare, random.Random(f"{seed} {each.shift} {each.number}").getrandbits(32), commit
            )
            write(comparison.to_json())
            if progress is not None:
                progress(position, len(plan), comparison)
    found = open_selfcheck(selfcheck.path)
    _write_summary(found)
    return found


def _made(each: PlannedComparison, compare: Compare, seed: int, commit: str) -> Comparison:
    log_ratios: list[float] = []
    now = datetime.datetime.now(datetime.timezone.utc)
    begin = time.monotonic()
    finding = compare(each.case, each.shift, seed, lambda pair: log_ratios.append(float(pair["log_ratio"])))
    return Comparison(
        shift=each.shift,
        number=each.number,
        probe=each.case.probe,
        case_id=each.case.case_id,
        label=each.case.label,
        verdict=finding.verdict,
        ratio=finding.ratio.value if finding.ratio is not None else None,
        seconds=round(time.monotonic() - begin, 3),
        log_ratios=tuple(log_ratios),
        started_at=now.isoformat(timespec="seconds"),
        commit=commit,
        reason=finding.sentence if finding.verdict == "failed" else "",
        machine=dict(finding.details.get("machine", {})),
    )


def _write_summary(selfcheck: Selfcheck) -> None:
    whole = dict(selfcheck.settings) | {"summary": selfcheck.to_json()}
    path = selfcheck.path / MANIFEST
    try:
        files.write_whole(path, json.dumps(whole, indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); every comparison is kept in {COMPARISONS} beside it."
        ) from None


@contextmanager
def _alone_with(path: Path) -> Iterator[None]:
    """Keep a second selfcheck from writing the same file, and end a line that a killed one left torn."""
    with ExitStack() as resources:
        try:
            file = resources.enter_context(files.open_for_appending(path))
            files.lock(file)
            content = files.read_bytes(path)
            if content and not content.endswith(b"\n"):
                file.write(b"\n")
        except BlockingIOError:
            raise UserError(f"Another process is writing {path}: wait until that selfcheck is over.") from None
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}.") from None
        yield


# What turns the median of absolute deviations into a standard deviation where noise is normal.
_NORMAL_MAD = 1.4826
_VERDICTS: tuple[Word, ...] = ("slower", "faster", "equivalent", "undecided")


def heading(selfcheck: Selfcheck) -> Remark:
    """What was compared, under which rule, and where."""
    settings, rule = selfcheck.settings, selfcheck.settings["rule"]
    return remark(
        "Selfcheck of {machine}: {cases} benchmarks, margin {margin}, at most {budget} and {pairs} pairs a comparison",
        machine=settings["machine"],
        cases=len(settings["cases"]),
        margin=quantity(selfcheck.margin, "%"),
        budget=quantity(settings["budget_s"], "s"),
        pairs=rule["max_pairs"],
    )


def findings_of_selfcheck(selfcheck: Selfcheck) -> Findings:
    """What keeps the rates from being the whole answer, the sentence, and tables by slowdown and by benchmark."""
    by_benchmark = sorted(grouped(selfcheck.comparisons, lambda each: each.label).items())
    verdicts = (Column(each, partial(_rate, selfcheck, each), "%") for each in _VERDICTS)
    by_shift = (
        Column("injected", lambda shift: shift, "%", 2),
        Column("tries", lambda shift: len(selfcheck.measured(shift))),
        *verdicts,
        Column("found", selfcheck.change, "+%"),
        Column("median", lambda shift: _time(selfcheck.seconds(shift)), "s", 0),
        Column("p90", lambda shift: seconds.p90 if (seconds := selfcheck.seconds(shift)) else None, "s", 0),
    )
    pairs = (
        Column("benchmark", lambda item: item[0], priority=2),
        Column("pairs", lambda item: len(_deviations(item[1]))),
        Column("time a pair", lambda item: _time_a_pair(item[1]), "s", 0),
        Column("sd", lambda item: _spread(item[1], np.std), "%"),
        Column("MAD-sd", lambda item: _spread(item[1], _scaled_mad), "%", 0),
        Column("false alarms", lambda item: _alarms(item[1], identical=True)),
        Column("slower found", lambda item: _alarms(item[1], identical=False)),
    )
    return findings(
        _cautions(selfcheck),
        remark("{said}", said=selfcheck.sentence()),
        table("Verdicts by injected slowdown, with 95 % intervals", by_shift, selfcheck.shifts),
        table("Pairs by benchmark", pairs, by_benchmark),
    )


def _rate(selfcheck: Selfcheck, verdict: Word, shift: float) -> Cell:
    rate = selfcheck.rate(shift, verdict)
    return Quantity(rate.value, "%", rate.low, rate.high, rate.tries) if rate.tries else None


def _time(seconds: Seconds | None) -> Cell:
    return None if seconds is None else Quantity(seconds.median, "s", seconds.low, seconds.high, 1)


def _deviations(made: Sequence[Comparison]) -> list[float]:
    """Of the pairs' log-ratios from each comparison's own median, so that slowdowns do not count as spread."""
    return [log_ratio - statistics.median(each.log_ratios) for each in made for log_ratio in each.log_ratios]


def _time_a_pair(made: Sequence[Comparison]) -> float | None:
    pairs = len(_deviations(made))
    return sum(each.seconds for each in made if each.log_ratios) / pairs if pairs > 1 else None


def _spread(made: Sequence[Comparison], of: object) -> float | None:
    deviations = _deviations(made)
    return float(of(deviations)) if callable(of) and len(deviations) > 1 else None


def _scaled_mad(deviations: Sequence[float]) -> float:
    return _NORMAL_MAD * float(np.median(np.abs(deviations)))


def _alarms(made: Sequence[Comparison], identical: bool) -> str:
    """How many of those that compared identical code, or code slowed down, ended in a change."""
    ends = ("slower", "faster") if identical else ("slower",)
    asked = [each.verdict in ends for each in made if (each.shift == 0) == identical and each.verdict != "failed"]
    return f"{sum(asked)} of {len(asked)}"


def _cautions(selfcheck: Selfcheck) -> list[Remark]:
    found = []
    failed = [each for each in selfcheck.comparisons if each.verdict == "failed"]
    if failed:
        found.append(
            remark(
                "{count} comparisons could not be made, the first of {first}: {reason}",
                kind="caution",
                count=len(failed),
                first=failed[0].label,
                reason=failed[0].reason,
            )
        )
    commits = sorted({each.commit[:12] for each in selfcheck.comparisons if each.commit})
    if len(commits) > 1:
        listed = ", ".join(commits)
        found.append(
            remark("Comparisons were made by the code of several commits: {commits}.", kind="caution", commits=listed)
        )
    return found


PROBE = "selfcheck"


def selfcheck_cases(device: Device) -> list[PairedCase]:
    """Eight on a CPU, each on one thread: the pairs' noise is then the machine's and not that of its scheduler."""
    cases = _cpu_cases() if device.kind == "cpu" else _cuda_cases()
    return [PairedCase.same(PROBE, case) for case in cases]


def _cpu_cases() -> list[Case]:
    one_thread = Schedule("data_parallel", 1)
    products = (
        MatmulParameters(384, 384, 384, one_thread),
        MatmulParameters(256, 256, 256, one_thread),
        MatmulParameters(257, 255, 509, one_thread),
        MatmulParameters(384, 384, 384, Schedule("stream_k", 1)),
        MatmulParameters(384, 384, 384, one_thread, dtype="bfloat16"),
        MatmulParameters(192, 768, 256, one_thread, layout="TN"),
    )
    attentions = (
        AttentionParameters(1, 4, 64, 256, dtype="float32"),
        AttentionParameters(1, 2, 128, 256, causal=True, dtype="float32"),
    )
    return [Case("matmul", product, "native") for product in products] + [
        Case("attention", attention, "native") for attention in attentions
    ]


def _cuda_cases() -> list[Case]:
    library = Schedule("library", 1)
    products = (
        MatmulParameters(1024, 1024, 1024, library, dtype="bfloat16", layout="TN"),
        MatmulParameters(2048, 2048, 2048, library, dtype="bfloat16", layout="TN"),
        MatmulParameters(4096, 4096, 1024, library, dtype="bfloat16", layout="NN"),
        MatmulParameters(2000, 2000, 2000, library, dtype="bfloat16", layout="TN"),
    )
    return [Case("matmul", product, "cublas") for product in products]
