"""A study before it runs: its grid as a file, and whether each configuration can run on this machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError, Within, offer
from pyperf_suite.findings.axes import Flag, read_axes
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.planner.study.grid import GRID, MODEL, Configuration, StudyAxes
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.on_ranks import DTYPES

# A study is a few numbers; a longer file is another one.
LARGEST_BYTES = 1 << 20
LIMITS = {"steps": Within(2, 10_000), "warm_up": Within(1, 10_000), "experiments": Within(1, 100)}
WORDS = {int: "a whole number", bool: "true or false", str: "a word"}


@dataclass(frozen=True)
class RunSettings:
    """How each configuration is run: `steps` are timed after `warm_up`, in so many `experiments` of fresh processes."""

    steps: int = 10
    warm_up: int = 2
    experiments: int = 3
    seed: int = 0

    def validate(self) -> None:
        """Raise UserError for an impossible number."""
        for name, limit in LIMITS.items():
            limit.check(name, getattr(self, name))


@dataclass(frozen=True)
class StudyFile:
    """A study's TOML file: the tables [model], [grid], [run] and any number of [[configuration]].

    A list is crossed with every other list. Each [[configuration]] is a product of its own: its lists with those of
    [grid] for the axes that it does not name.
    """

    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    configurations: tuple[Configuration, ...] = ()
    run: RunSettings = RunSettings()

    def over(self, defaults: StudyAxes) -> StudyAxes:
        """The file's axes, and the defaults for the others; a file that cuts nothing keeps the default cuts."""
        axes = defaults.given(self.axes)
        return replace(axes, configuration=self.configurations) if self.configurations else axes


def read_study(path: Path) -> StudyFile:
    """The study of a file. Raises UserError if it cannot be read, or says something that a study does not know."""
    try:
        content = files.read_bytes(path, LARGEST_BYTES)
    except OSError as error:
        raise UserError(f"The study {path} cannot be read: {error.strerror}.") from None
    try:
        read = files.parse_toml(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"The study {path} is not TOML: {error}.") from None
    try:
        return parse_study(read)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def parse_study(read: Mapping[str, Any]) -> StudyFile:
    """The study of a file's tables. Raises UserError for an unknown table or key, or a value of another kind."""
    known = {"model": MODEL, "grid": GRID, "run": tuple(vars(RunSettings())), "configuration": GRID}
    _require_known(read, tuple(known), "A study has no table")
    model, grid, run = (read.get(name, {}) for name in ("model", "grid", "run"))
    configurations = read.get("configuration", [])
    if not isinstance(configurations, list):
        raise UserError("configuration is a list of tables: write each below a line [[configuration]].")
    named = [("model", model), ("grid", grid), ("run", run), *(("configuration", each) for each in configurations)]
    for name, table in named:
        if not isinstance(table, dict):
            raise UserError(f"{name} is {table!r:.60}, but is a table: write its keys below a line [{name}].")
        _require_known(table, known[name], f"[{name}] has no key")
    for name, value in model.items():
        if isinstance(value, list):
            raise UserError(f"{name} of [model] is a list, but a study is of one model: give one value.")
    for name, value in run.items():
        _require_kind(name, value, int)
    settings = RunSettings(**run)
    settings.validate()
    own = tuple(Configuration(tuple(_axes(each).items())) for each in configurations)
    return StudyFile(_axes(model) | _axes(grid), own, settings)


def _axes(table: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The values of a table's axes, one or a list each. Raises UserError for one of another kind."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, value in table.items():
        (default,) = getattr(StudyAxes(), name)
        values = value if isinstance(value, list) else [value]
        for each in values:
            _require_kind(name, each, bool if isinstance(default, Flag) else int if isinstance(default, int) else str)
        found[name] = tuple(read_axes(StudyAxes, {name: str(each)})[name][0] for each in values)
    return found


def _require_kind(name: str, value: Any, kind: type) -> None:
    if type(value) is not kind:
        raise UserError(f"{name} is {value!r:.60}, but takes {WORDS[kind]}.")


def _require_known(table: Mapping[str, Any], known: Collection[str], sentence: str) -> None:
    for name in table:
        if name not in known:
            raise UserError(f"{sentence} {name[:60]!r}: {offer(name, known)}")


def refusals(cases: Iterable[Case], device: Device) -> dict[str, str]:
    """Why configurations cannot run on this machine, by case id; those that can are left out."""
    reasons = {case.case_id: (case.parameters.name, _why_refused(case, device)) for case in cases}
    return {case_id: f"{name}: {reason}" for case_id, (name, reason) in reasons.items() if reason}


def _why_refused(case: Case, device: Device) -> str:
    launched, ranks, p = rank_environment(), case.parameters.ranks, case.parameters
    try:
        case.validate()
        held_bytes = 2 * DTYPES[p.dtype] * p.dimensions.parameters * (1 if p.is_sharded else p.data)
    except UserError as reason:
        return str(reason)
    if not launched.launched and device.kind == "cuda" and ranks > len(gpus()):
        return f"It takes {ranks} GPUs, but this machine has {len(gpus())}: start it by torchrun on more nodes."
    # A GPU refuses what it has no room for, which is an outcome; Linux ends processes for it.
    free_bytes = memory.available_bytes()
    if device.kind == "cpu" and not launched.launched and held_bytes > free_bytes:
        return (
            f"Weights and gradients take {held_bytes / 1e9:.1f} GB, but {free_bytes / 1e9:.1f} GB of memory are free: "
            "ask for a smaller model."
        )
    return ""
