"""Report of a finished run: its findings printed, and kept as findings.md, findings.json and pictures, all derived."""

from __future__ import annotations

import shlex
import statistics
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pyperf_suite import files
from pyperf_suite.findings.axes import overrides_for
from pyperf_suite.findings.data import Findings
from pyperf_suite.findings.rows import grouped
from pyperf_suite.findings.summary import about_the_machine, cautions_of, failures_of, fitness_of, summary_of
from pyperf_suite.probes import FindProbe, all_probes, find_probe, is_users
from pyperf_suite.record.reading import readings
from pyperf_suite.record.record import Record
from pyperf_suite.render import terminal, text
from pyperf_suite.render.charts import draw
from pyperf_suite.render.text import SCHEMA, VERSION, as_data, as_text, findings_as_data
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.results import RunFolder
from pyperf_suite.user_kernels.probe import is_test

FILE = "findings.json"
OWN_PROFILES = ("accept", "study")


def findings_of(records: Sequence[Record], find: FindProbe = find_probe) -> dict[str, Findings]:
    """Return each probe's findings on its own records, by topic."""
    by_probe = grouped(records, lambda record: record.probe)
    theirs = [find_probe(name) for name in sorted(filter(is_users, by_probe))]
    return {probe.name: probe.findings(by_probe[probe.name]) for probe in [*all_probes(by_probe, find), *theirs]}


def report_run(
    console: Console,
    folder: RunFolder,
    records: Sequence[Record],
    everything: bool = False,
    probes: Container[str] | None = None,
    more: str = terminal.SHOW_ALL,
    find: FindProbe = find_probe,
) -> None:
    """Write a run's pictures and files, and end with one screen: failures, what matters, cautions, where the rest lies.

    Before it come the tables of a few probes, or `everything` that was found; of `probes` alone if given. `more` says
    how all of it is printed.
    """
    findings = findings_of(records, find)
    printed = {name: found for name, found in findings.items() if probes is None or name in probes}
    of_the_run, _ = cautions_of(records, ())
    fitness = fitness_of(records)
    if len(printed) == 1 and not everything:
        ((name, found),) = printed.items()
        failures = failures_of(records)
        console.print(f"\n[bold]{terminal.escape(name)}[/bold]")
        terminal.print_summary(console, failures)
        besides = terminal.PLACES_LINES + 2 + len(failures)
        terminal.print_answer(console, Findings((*of_the_run, *found.remarks), found.tables), more, besides)
    else:
        if everything:
            terminal.print_findings(console, printed, records)
        else:
            terminal.print_first_tables(console, printed, more)
        console.print()
        terminal.print_fitness(console, fitness)
        terminal.print_summary(console, [*failures_of(records), *summary_of(printed, records)])
        # Remarks about the machine are at the top.
        of_the_machine = list(about_the_machine(records))
        of_the_cases = [each for each in of_the_run if each not in of_the_machine]
        terminal.print_cautions(
            console, [*of_the_cases, *(each for found in printed.values() for each in found.cautions)], more
        )
    terminal.print_places(console, folder.records_path, write_all(findings, records, folder), more)


def run_as_json(folder: RunFolder, records: Sequence[Record], find: FindProbe = find_probe, **extra: Any) -> str:
    """The content of findings.json, and with it what is in `extra`; all files are written as well."""
    findings = findings_of(records, find)
    write_all(findings, records, folder)
    return as_text({**as_document(findings, records, folder), **extra})


def markdown_of_run(
    findings: Mapping[str, Findings], records: Sequence[Record], folder: RunFolder, drawn: Sequence[Path]
) -> str:
    """The content of findings.md, with the pictures that were drawn next to it."""
    profiles = {record.probe: record.profile for record in records}
    commands = {name: command_of(name, folder.manifest, profiles.get(name, "")) for name in findings}
    summary = [text.point(point) for point in (*failures_of(records), *summary_of(findings, records))]
    title = f"{folder.run_id} on {folder.path.parent.name}"
    return text.markdown_page(title, findings, records, drawn, commands, summary)


def write_all(findings: Mapping[str, Findings], records: Sequence[Record], folder: RunFolder) -> list[Path]:
    """The pictures, findings.md that shows them, findings.json, and what probes have in forms that others know."""
    written = draw_all(findings, folder.path)
    texts = {
        "findings.md": markdown_of_run(findings, records, folder, written),
        FILE: as_text(as_document(findings, records, folder)),
        **{document.name: document.text for found in findings.values() for document in found.documents},
    }
    for name, content in texts.items():
        try:
            files.write_whole(folder.path / name, content)
            written.append(folder.path / name)
        except OSError as error:
            warnings.warn(f"{name} could not be written: {error.strerror}.", stacklevel=2)
    return written


def draw_all(findings: Mapping[str, Findings], folder: Path) -> list[Path]:
    """Every figure as a PNG in the run's folder; one that cannot be written is warned about, not fatal."""
    paths = []
    for figure in (figure for found in findings.values() for figure in found.figures):
        try:
            paths.append(draw(figure, folder))
        except OSError as error:
            warnings.warn(f"The picture {figure.name} could not be written: {error.strerror}.", stacklevel=2)
    return paths


def command_of(probe: str, manifest: Mapping[str, Any], profile: str = "") -> str:
    """One line of shell that measures a probe again; `profile` is the records' own, for a manifest that was lost.

    Manifests of runs before axes were kept in them name none: their command measures the sweep as the profile has it.

    >>> command_of("tile_wave", {"profile": "standard", "device": "cpu", "seed": 3, "asked": ["tile=64x64x256"]})
    'pyperf-suite run tile_wave -a tile=64x64x256 --profile standard --device cpu --seed 3'
    >>> command_of("study", {"profile": "20 steps after 3", "device": "cpu", "asked": ["--data=1,2", "--steps=20"]})
    'pyperf-suite study --data=1,2 --steps=20 --device cpu'
    """
    strings = {name: value for name, value in manifest.items() if isinstance(value, str)}
    profile, device, seed = strings.get("profile") or profile, strings.get("device", ""), manifest.get("seed")
    kept = manifest.get("asked")
    requested = [word for word in kept if isinstance(word, str)] if isinstance(kept, list) else []
    if is_test(probe):
        run_by = ["pytest", probe, "--suite-measure", *(["--suite-profile", profile] if profile else [])]
        return shlex.join([*run_by, *(["--suite-device", device] if device else [])])
    if probe in OWN_PROFILES and profile not in PROFILES:
        # A study's steps and seed are arguments of its own, and the profile is made from them.
        words = [probe, *requested]
    else:
        replaced = overrides_for(probe, dict(word.split("=", 1) for word in requested if "=" in word))
        words = ["run", probe, *(word for name, values in replaced.items() for word in ("-a", f"{name}={values}"))]
        words += ["--profile", profile] if profile else []
    words += ["--device", device] if device else []
    words += ["--seed", str(seed)] if seed and isinstance(seed, int) and words[0] == "run" else []
    return shlex.join(["pyperf-suite", *words])


def as_document(findings: Mapping[str, Findings], records: Sequence[Record], folder: RunFolder) -> dict[str, Any]:
    """Return findings.json of a run as plain data; numbers that are not finite are for `as_text` to leave out."""
    of_the_run, of_probes = cautions_of(records, findings)
    by_probe = grouped(records, lambda record: record.probe)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "run_id": folder.run_id,
        "machine": folder.path.parent.name,
        "run": dict(folder.manifest),
        **_effort(records),
        "summary": as_data([*failures_of(records), *summary_of(findings, records)]),
        "cautions": as_data(of_the_run),
        "probes": [
            {
                **_probe(name, by_probe.get(name, []), folder.manifest),
                **findings_as_data(Findings(tuple(of_probes[name])) + found),
            }
            for name, found in findings.items()
        ],
    }


def bencher_metrics(records: Sequence[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """Return metrics in the Bencher Metric Format: by benchmark and measure its value and the interval's ends.

    Time is `latency` in nanoseconds, as Bencher counts it; other measures have the names and units of the records. Over
    several processes a value is the median of theirs, between the least and the greatest.
    """
    by_benchmark: dict[str, dict[str, dict[str, float]]] = {}
    measured = [each for each in records if each.outcome == "ok" and each.kind != "sentinel"]
    for trials in grouped(measured, lambda each: (each.probe, each.case_id)).values():
        benchmark = by_benchmark.setdefault(f"{trials[0].probe} {trials[0].label}", {})
        for name in dict.fromkeys(name for each in trials for name in each.metrics):
            # A resumed run may hold a second trial of the same process; the later one stands.
            of = list({each.process: each.metrics[name] for each in trials if name in each.metrics}.values())
            values = [each.value for each in of]
            bounds = (of[0].low, of[0].high) if len(of) == 1 else (min(values), max(values))
            ends = zip(("value", "lower_value", "upper_value"), (statistics.median(values), *bounds), strict=True)
            scale = 1e9 if name == "time" else 1
            benchmark["latency" if name == "time" else name] = {end: value * scale for end, value in ends}
    return by_benchmark


def _probe(name: str, records: Sequence[Record], manifest: Mapping[str, Any]) -> dict[str, Any]:
    probe, effort = find_probe(name), _effort(records)
    return {
        "name": name,
        "title": probe.heading,
        "question": probe.question,
        "topic": probe.topic,
        "command": command_of(name, manifest, effort["profile"]),
        **effort,
        "cases": [
            {
                "case": each.case.to_json(),
                "case_id": each.case.case_id,
                "label": each.case.label,
                "seconds": each.seconds,
                "low_s": each.low,
                "high_s": each.high,
                "tflop_per_s": each.tflop_per_s if each.flop else None,
                "processes": len(each.by_process),
                "converged": each.converged,
            }
            for each in readings(records)
        ],
    }


def _effort(records: Iterable[Record]) -> dict[str, Any]:
    timed = [record for record in records if record.kind == "timing" and record.outcome == "ok"]
    profiles = dict.fromkeys(record.profile for record in records if record.profile)
    return {"profile": ", ".join(profiles), "processes": len({record.process for record in timed})}
