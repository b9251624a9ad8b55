"""The record of a watched job: read from its folder, and what it waited for and how it ran as findings."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError, printable
from pyperf_suite.spec.findings import (
    Figure,
    Findings,
    Panel,
    Quantity,
    Remark,
    Series,
    Table,
    figure,
    findings,
    remark,
)
from pyperf_suite.spec.rows import Column, grouped, table
from pyperf_suite.watch.patterns import LEAST_SAMPLES, after_start, figures, judge
from pyperf_suite.watch.samples import RankSample, Sample

MANIFEST, SAMPLES = "watch.json", "samples.jsonl"
QUESTION = "What does this job wait for?"
_LARGEST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class WatchRecord:
    """A watched job; without `patterns` in its manifest it runs still, or who watched it was killed."""

    path: Path
    manifest: Mapping[str, Any]
    samples: tuple[Sample, ...]

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def machine(self) -> str:
        return self.path.parent.name

    @property
    def started_at(self) -> str:
        return str(self.manifest.get("started_at", ""))

    @property
    def model(self) -> str:
        """What the machine is called; its folder's name where the record does not say."""
        identity = self.manifest.get("identity")
        return str((identity if isinstance(identity, dict) else {}).get("model") or self.machine)

    @property
    def job(self) -> str:
        """The command, or the process, that was watched, on one line."""
        words = self.manifest.get("command")
        if not isinstance(words, list) or not words:
            return f"--pid {self.manifest.get('pid')}"
        return printable(" ".join(shlex.join(map(str, words)).split()))

    @property
    def command(self) -> str:
        """What watches such a job again."""
        return f"pyperf-suite watch {'' if self.job.startswith('--pid') else '-- '}{self.job}"


def read_watch(folder: Path) -> WatchRecord:
    """The record in that folder. Raises UserError where it is damaged or of another version."""
    try:
        manifest = json.loads(files.read_text(folder / MANIFEST, _LARGEST_BYTES))
        if not isinstance(manifest, dict):
            raise ValueError("it holds no object")
        text = files.read_text(folder / SAMPLES, _LARGEST_BYTES) if (folder / SAMPLES).exists() else ""
        # Whoever writes it still may have written half a line.
        return WatchRecord(folder, manifest, tuple(map(_sample, text.split("\n")[:-1])))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else f"{error!r:.120}"
        raise UserError(f"{folder} is not the record of a watched job: {said}.") from None


def _sample(line: str) -> Sample:
    held = json.loads(line)
    return Sample(**{**held, "ranks": tuple(RankSample(**each) for each in held["ranks"]), "gpus": tuple(held["gpus"])})


def findings_of(record: WatchRecord) -> Findings:
    """What the job waited for with the evidence, its rates, its ranks in a table, and its samples over time.

    Raises UserError where it says something that this version cannot read.
    """
    steady = after_start(record.samples)
    try:
        return findings(
            _told(record, len(steady)),
            ranks_table(figures(steady)),
            _steps(record.manifest.get("steps") or {}),
            _over_time(record.samples),
        )
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{record.run_id} cannot be read by this version: {error!r:.120}.") from None


def _told(record: WatchRecord, steady: int) -> Iterator[Remark]:
    held, is_whole = record.manifest, "patterns" in record.manifest
    if is_whole:
        found = [_named(each["name"], _remark(each), each["advice"]) for each in held["patterns"]]
    else:
        found = [_named(each.name, each.evidence, each.advice) for each in judge(record.samples)]
        yield remark("Watching has not ended, or was killed: this is of what was seen until then.", kind="caution")
    watched_s = held.get("watched_s") or (record.samples[-1].at_s if record.samples else 0.0)
    told, values = (
        "{job} was watched for {seconds:duration}",
        {"job": record.job[:200], "seconds": watched_s},
    )
    if held.get("exit_code") is not None:
        told, values["code"] = told + " and ended with exit code {code}", held["exit_code"]
    if held.get("own_cpu_share") is not None:
        told, values["own"] = told + "; watching took {own:%} of a core", held["own_cpu_share"]
    yield remark(f"{told}.", **values)
    yield from found
    if not found:
        short = "It was watched for too short a time to tell what it waits for."
        yield remark(short if steady < LEAST_SAMPLES else "Nothing was found that it waits for.")
    units = {"tokens_per_s": ("tokens/s", "Tokens a second"), "flop_per_s": ("TFLOP/s", "FLOP"), "mfu": ("%", "MFU")}
    rates = {name: value for name, value in (held.get("steps") or {}).items() if name in units}
    if rates:
        words = (f"{units[name][1]}: {{{name}:{units[name][0]}}}" for name in rates)
        yield remark(f"{'; '.join(words)}.", **rates)
    if held.get("energy_j"):
        yield remark("Its GPUs took {energy:joules}.", energy=held["energy_j"])


def _named(name: str, evidence: Remark, advice: str) -> Remark:
    values = {**evidence.values, "pattern": name, "advice": advice}
    return Remark(f"{{pattern}}: {evidence.template}. Next: {{advice}}", values)


def _remark(held: Mapping[str, Any]) -> Remark:
    """The evidence as `findings_json` wrote it."""
    values = {
        name: Quantity(math.nan if each["value"] is None else each["value"], each["shown"])
        if isinstance(each, dict)
        else each
        for name, each in held["values"].items()
    }
    return Remark(held["template"], values)


def _waits(row: Mapping[str, Any]) -> str | None:
    waits = sorted(row["waits"].items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {share:.0%}" for kind, share in waits if share >= 0.05) or None


def ranks_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each rank of means, as `patterns.figures` has them."""

    def known(name: str) -> Callable[[Mapping[str, Any]], Any]:
        return lambda row: row.get(name)

    columns = (
        Column("rank", priority=2),
        Column("process", "pid", priority=0),
        Column("CPUs", lambda row: round(row["cores"], 2)),
        Column("main thread", "main_share", "%"),
        Column("waits for", _waits, priority=2),
        Column("loaders", lambda row: round(row["loaders"]) or None),
        Column("loaders busy", lambda row: row["loader_busy"] if row["loaders"] else None, "%"),
        Column("memory", "memory_bytes", "size"),
        Column("GPU", known("utilization"), "%", priority=2),
        Column("its SMs", known("sm_activity"), "%", priority=2),
        Column("tensor cores", known("tensor_activity"), "%"),
        Column("power", known("power_w"), "W"),
    )
    return table("", columns, rows)


def _steps(steps: Mapping[str, Any]) -> Table:
    rows = [{"rank": int(rank), **each} for rank, each in steps.get("ranks", {}).items()]
    quantiles = (Column(f"p{number}", f"p{number}_s", "duration") for number in (50, 90, 99))
    return table("Steps", (Column("rank"), Column("steps"), *quantiles), rows)


def _over_time(samples: Sequence[Sample]) -> Figure | None:
    """What changes over the time watched, a point a sample; None without samples."""
    ranks = [(each.at_s, one.rank, vars(one) | {"occupied": one.occupied}) for each in samples for one in each.ranks]
    gpus = [(each.at_s, one["rank"], one) for each in samples for one in each.gpus]
    loading = [each for each in ranks if each[2]["loaders"]]
    panels = (
        _panel("main thread busy", "%", "occupied", ranks),
        _panel("loaders busy", "%", "loader_busy", loading),
        _panel("memory", "size", "memory_bytes", ranks),
        _panel("GPU busy", "%", "utilization", gpus),
        _panel("SMs with work", "%", "sm_activity", gpus),
        _panel("power", "W", "power_w", gpus),
        _panel("GPU memory", "size", "memory_used_bytes", gpus),
    )
    caption = "A point is the mean of one interval; the start of a job is not judged."
    return figure("watch", "The job over time", caption, filter(None, panels), across=2)


def _panel(label: str, unit: str, name: str, held: Sequence[tuple[float, int, Mapping[str, Any]]]) -> Panel | None:
    points = grouped((each for each in held if name in each[2]), lambda each: each[1])
    series = [
        Series(
            f"rank {rank}", [at_s for at_s, _, _ in of_rank], [float(each[name]) for _, _, each in of_rank], "points"
        )
        for rank, of_rank in points.items()
    ]
    return Panel("", "watched", label, tuple(series), x_unit="duration", y_unit=unit) if series else None
