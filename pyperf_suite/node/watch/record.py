"""The record of a watched job: read from its folder, and what it waited for and how it ran as findings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError, printable
from pyperf_suite.extensions import OtherRecord
from pyperf_suite.findings.data import Figure, Findings, Panel, Remark, Series, Table, figure, findings, remark
from pyperf_suite.findings.rows import Column, grouped, table
from pyperf_suite.node.watch.patterns import LEAST_SAMPLES, Pattern, after_start, figures, judge
from pyperf_suite.node.watch.samples import RankSample, Sample

MANIFEST, SAMPLES = "watch.json", "samples.jsonl"
_LARGEST_BYTES = 64 * 2**20
# Columns of the table of ranks; a narrow terminal drops the last ones first: heading, key of a row, unit.
_COLUMNS = (
    ("rank", "rank", ""),
    ("GPU", "utilization", "%"),
    ("its SMs", "sm_activity", "%"),
    ("main thread", "main_share", "%"),
    ("waits for", "waited", ""),
    ("CPUs", "cores", ""),
    ("loaders", "loaders", "count"),
    ("loaders busy", "loader_busy", "%"),
    ("memory", "memory_bytes", "size"),
    ("process", "pid", ""),
    ("tensor cores", "tensor_activity", "%"),
    ("power", "power_w", "W"),
)
_RATES = {
    "tokens_per_s": "{tokens_per_s:tokens/s}.",
    "flop_per_s": "{flop_per_s:TFLOP/s}.",
    "mfu": "MFU {mfu:%}.",
    "energy_j": "Its GPUs took {energy_j:joules}.",
}
# Panels over time: axis, name in a sample of a rank or a GPU, unit.
_PANELS = (
    ("main thread has work", "occupied", "%"),
    ("loaders busy", "loader_busy", "%"),
    ("memory", "memory_bytes", "size"),
    ("GPU busy", "utilization", "%"),
    ("SMs with work", "sm_activity", "%"),
    ("power", "power_w", "W"),
    ("GPU memory", "memory_used_bytes", "size"),
)


@dataclass(frozen=True)
class WatchRecord(OtherRecord):
    """A watched job; without `watched_s` in its manifest it runs still, or who watched it was killed."""

    path: Path
    manifest: Mapping[str, Any]
    samples: tuple[Sample, ...]

    @property
    def job(self) -> str:
        """The command, or the process, that was watched, on one line."""
        words = self.manifest.get("command") or ["--pid", self.manifest.get("pid")]
        return printable(" ".join(shlex.join(map(str, words)).split()))

    kind = "watch"
    topic = "watched jobs"
    title = job
    question = "What does this job wait for?"

    @property
    def command(self) -> str:
        return f"pyperf-suite watch -- {self.job}".replace("-- --pid", "--pid")

    def findings(self) -> Findings:
        """Return the reasons for waiting with their evidence, the rates, a table of the ranks, and the samples."""
        steady, steps = after_start(self.samples), self.manifest.get("steps") or {}
        short = "It was watched for too short a time to tell what it waits for."
        nothing = remark(short if len(steady) < LEAST_SAMPLES else "Nothing was found that it waits for.")
        waits = [named(each) for each in judge(self.samples, medians(steps))] or [nothing]
        rates = (
            remark(message, **{name: value})
            for name, message in _RATES.items()
            if (value := {**self.manifest, **steps}.get(name))
        )
        return findings(_watched(self), waits, rates, _ranks(steady), _steps(steps), _over_time(self.samples))


def read_watch(folder: Path) -> WatchRecord:
    """The record in that folder. Raises UserError where it is damaged or of another version."""
    try:
        manifest = json.loads(files.read_text(folder / MANIFEST, _LARGEST_BYTES))
        text = files.read_text(folder / SAMPLES, _LARGEST_BYTES) if (folder / SAMPLES).exists() else ""
        # Whoever writes it still may have written half a line.
        record = WatchRecord(folder, manifest, tuple(map(_sample, text.split("\n")[:-1])))
        record.findings()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UserError(f"{folder.name} is no record of a watched job that can be read: {error!r:.120}.") from None
    return record


def _sample(line: str) -> Sample:
    held = json.loads(line)
    return Sample(**{**held, "ranks": tuple(RankSample(**each) for each in held["ranks"]), "gpus": tuple(held["gpus"])})


def named(pattern: Pattern) -> Remark:
    """The pattern's name, its evidence and what would tell more, in one remark."""
    values = {**pattern.evidence.values, "pattern": pattern.name, "advice": pattern.advice}
    return Remark(f"{{pattern}}: {pattern.evidence.template}. Next: {{advice}}", values)


def medians(steps: Mapping[str, Any]) -> dict[int, float]:
    """Seconds of each rank's median step, of ranks with enough of them, from what `steps.summary` counted."""
    ranks = steps.get("ranks", {}).items()
    return {int(rank): each["p50_s"] for rank, each in ranks if each["steps"] >= LEAST_SAMPLES}


def _watched(record: WatchRecord) -> Remark:
    manifest, last_s = record.manifest, record.samples[-1].at_s if record.samples else 0.0
    values = {"job": record.job[:200], "seconds": manifest.get("watched_s", last_s), "code": manifest.get("exit_code")}
    if "watched_s" not in manifest:
        return remark("{job} is watched, or its watcher was killed; {seconds:duration} are known.", **values)
    message = "{job} was watched for {seconds:duration}" + (
        ", exit code {code}" if manifest.get("exit_code") is not None else ""
    )
    return remark(f"{message}; watching took {{own:%}} of a core.", own=manifest["own_cpu_share"], **values)


def _ranks(steady: Sequence[Sample]) -> Table:
    """A line for each rank of means, as `patterns.figures` has them."""
    rows = []
    for row in figures(steady):
        waits = sorted(row["waits"].items(), key=lambda item: -item[1])
        waited = ", ".join(f"{kind} {share:.0%}" for kind, share in waits if share >= 0.05) or None
        rows.append({**row, "waited": waited, "cores": round(row["cores"], 2)})
        if not row["loaders"]:
            del rows[-1]["loaders"], rows[-1]["loader_busy"]
    columns = [Column(heading, key, unit) for heading, key, unit in _COLUMNS]
    known = dict.fromkeys(key for _, key, _ in _COLUMNS)
    return table("", columns, [known | row for row in rows])


def _steps(steps: Mapping[str, Any]) -> Table:
    rows = [{"rank": int(rank), **each} for rank, each in steps.get("ranks", {}).items()]
    quantiles = (Column(f"p{number}", f"p{number}_s", "duration") for number in (50, 90, 99))
    return table("Steps", (Column("rank"), Column("steps"), *quantiles), rows)


def _over_time(samples: Sequence[Sample]) -> Figure | None:
    """Return the figure of changes over the time watched, a point a sample; None without samples."""
    points: list[tuple[float, Mapping[str, Any]]] = []
    for sample in samples:
        for each in sample.ranks:
            busy = each.loader_busy if each.loaders else None
            points.append((sample.at_s, {**vars(each), "occupied": each.occupied, "loader_busy": busy}))
        points += ((sample.at_s, gpu) for gpu in sample.gpus)
    panels = []
    for label, name, unit in _PANELS:
        known = [(at_s, each["rank"], float(each[name])) for at_s, each in points if each.get(name) is not None]
        of_ranks = {rank: list(zip(*held, strict=True)) for rank, held in grouped(known, lambda each: each[1]).items()}
        series = [Series(f"rank {rank}", x, y, "points") for rank, (x, _, y) in of_ranks.items()]
        if series:
            panels.append(Panel("", "watched", label, tuple(series), x_unit="duration", y_unit=unit))
    caption = (
        "A point is the mean of one interval; the start of a job is not judged. A main thread has work where it runs, "
        "waits for a core, or for the disk."
    )
    return figure("watch", "The job over time", caption, panels, across=2)
