"""A study before it runs: its grid as a file, whether each configuration fits this machine, and what the laws predict.

Memory is known before anything is started, so that hours of a grid are not spent on what the first step would end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError, Within, offer
from pyperf_suite.findings.axes import Flag, read_axes
from pyperf_suite.hardware import cpu, memory
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.laws.training.memory import LAST_STAGE, ActivationPolicy, Storage, Weight
from pyperf_suite.planner.calibrate import (
    FILE,
    PROBE,
    calibrated_cpu,
    laws_of,
    origin_of,
    predicted_step,
    runs_of,
    step_plan,
)
from pyperf_suite.planner.laws.calibration import Calibration, load_calibration
from pyperf_suite.planner.laws.prices import Prices
from pyperf_suite.planner.laws.training.engine_step import fsdp_units
from pyperf_suite.planner.laws.training.held_by_rank import (
    BFLOAT16,
    FLOAT32,
    Engine,
    held_by_rank,
    interleaved,
    rank_weights,
    saved_bytes,
    working_bytes,
)
from pyperf_suite.planner.laws.training.memory import USABLE_SHARE, MemoryNeed
from pyperf_suite.planner.laws.training.step import step_time
from pyperf_suite.planner.study.grid import GRID, MODEL, Configuration, StudyAxes
from pyperf_suite.planner.study.results import NO_ROOM, Predictor, StudyPrediction
from pyperf_suite.planner.workloads.parallel_layout import ParallelStepParameters
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.runner.record import Case
from pyperf_suite.workloads.on_ranks import DTYPES
from pyperf_suite.workloads.training import Checkpointing

# A study is a few numbers; a longer file is another one.
LARGEST_BYTES = 1 << 20
LIMITS = {"steps": Within(2, 10_000), "warm_up": Within(1, 10_000), "experiments": Within(1, 100)}
WORDS = {int: "a whole number", bool: "true or false", str: "a word"}
# From this stage of ZeRO on torch's engine is FSDP2, which keeps its shards in float32.
FSDP_FROM_STAGE = 2
# What the nearest configuration that fits may change.
CHANGED = ("zero_stage", "batch", "checkpointing")
# The laws' names of the types that a study computes in.
LAW_DTYPE = {"float32": "tf32", "bfloat16": "bf16"}
# The parts of a rank's memory that the engine counts too, by the names of laws and of a study's results both.
COUNTED = ("weights", "gradients", "optimizer", "activations")


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


def memory_by_rank(p: ParallelStepParameters, device_kind: str = "cpu") -> tuple[MemoryNeed, ...]:
    """The memory of every rank in order, tensor innermost, then data, then pipeline.

    Weights, gradients and optimizer states are what torch allocates, to the byte; `activations` are the maximum that
    autograd keeps; `gathered` is what FSDP2 has whole at once: with stage 3 the two largest units, else all.
    """
    needs = []
    chunks, micro_batches = p.pipeline * p.chunks, p.micro_batches if p.pipeline > 1 else 1
    for stage in range(p.pipeline):
        weights = rank_weights(p.dimensions, p.tensor, p.pipeline, p.chunks, stage)
        activations = saved_bytes(
            p.dimensions,
            p.batch,
            p.seq,
            _keeping_of(p, device_kind),
            tensor=p.tensor,
            chunk_layers=p.layers // chunks,
            last_chunk=chunks - 1,
            order=interleaved(stage, p.pipeline, p.chunks, micro_batches),
            micro_batches=micro_batches,
        )
        gathered = _gathered(p, weights)
        for held in held_by_rank(weights, _engine_of(p), p.data, _storage_of(p)):
            kept = (held.weights, held.gradients, held.optimizer)
            if p.offload != "none" and device_kind == "cuda":
                kept = (0, 0, 0)  # of the GPU's memory
            need = MemoryNeed(*kept, activations, gathered)
            needs += [need] * p.tensor
    return tuple(needs)


def _engine_of(p: ParallelStepParameters) -> Engine:
    """Which of torch's engines keeps what data-parallel ranks share; of one rank DDP's, without DDP."""
    if p.zero_stage >= FSDP_FROM_STAGE:
        return "fsdp"
    return "zero_optimizer" if p.zero_stage == 1 and p.data > 1 else "ddp"


def _storage_of(p: ParallelStepParameters) -> Storage:
    """Bytes a parameter: all in the dtype of the model, but FSDP2's shards in float32 whatever is computed in."""
    return FLOAT32 if p.dtype == "float32" or p.zero_stage >= FSDP_FROM_STAGE else BFLOAT16


def _keeping_of(p: ParallelStepParameters, device_kind: str) -> ActivationPolicy:
    """How one rank's part is run, as far as that decides what is kept for backward."""
    element = DTYPES[p.dtype]
    return ActivationPolicy(
        element_bytes=element,
        stream_bytes=element,
        attention="explicit" if p.attention == "explicit" else "math" if p.attention == "math" else "sdpa",
        checkpointing=p.checkpointing.kind,
        every=p.checkpointing.every,
        device="cuda" if device_kind == "cuda" else "cpu",
    )


def _gathered(p: ParallelStepParameters, weights: Sequence[Weight]) -> float:
    if _engine_of(p) != "fsdp" or p.data == 1:
        return 0.0
    units = sorted(fsdp_units(weights))
    return float(DTYPES[p.dtype] * sum(units[-2:] if p.zero_stage > FSDP_FROM_STAGE and p.pipeline == 1 else units))


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes for each rank of a machine on which so many ranks run at once; `where` names them in words."""

    bytes_a_rank: float
    where: str


def refusals(cases: Iterable[Case], device: Device, limit_bytes: float = math.inf) -> dict[str, str]:
    """Why configurations cannot run on this machine, by case id; those that can are left out.

    No rank may hold more than `limit_bytes`.
    """
    reasons = {case.case_id: (case.parameters.name, _why_refused(case, device, limit_bytes)) for case in cases}
    return {case_id: f"{name}: {reason}" for case_id, (name, reason) in reasons.items() if reason}


def _why_refused(case: Case, device: Device, limit_bytes: float) -> str:
    launched, ranks = rank_environment(), case.parameters.ranks
    try:
        case.validate()
    except UserError as reason:
        return str(reason)
    if not launched.launched and device.kind == "cuda" and ranks > len(gpus()):
        return f"It takes {ranks} GPUs, but this machine has {len(gpus())}: start it by torchrun on more nodes."
    here = -(-ranks // launched.nodes) if launched.launched else ranks
    room = room_of(device, here)
    if limit_bytes < room.bytes_a_rank:
        room = MemoryBudget(limit_bytes, f"the limit of {limit_bytes / 2**30:.3g} GiB")
    return why_not(case.parameters, device.kind, room)


def room_of(device: Device, ranks_here: int) -> MemoryBudget:
    """A GPU's own memory, or an equal share of what this machine has free; a tenth is left alone."""
    if device.kind == "cuda":
        whole = gpus()[device.index].memory_bytes
        return MemoryBudget(USABLE_SHARE * whole, f"the {whole / 2**30:.0f} GiB of a GPU, a tenth of them kept free")
    free = memory.available_bytes()
    share = f", shared by {ranks_here} ranks" if ranks_here > 1 else ""
    return MemoryBudget(
        USABLE_SHARE * free / ranks_here, f"the {free / 2**30:.1f} GiB free here{share}, a tenth kept free"
    )


def need_bytes(p: ParallelStepParameters, device_kind: str) -> float:
    """The maximum of the fullest rank: all that it holds, and what it computes again of one micro-batch."""
    again = working_bytes(p.dimensions, p.batch, p.seq, _keeping_of(p, device_kind)) / p.tensor
    return max(float(need.total) for need in memory_by_rank(p, device_kind)) + again


def why_not(p: ParallelStepParameters, device_kind: str, room: MemoryBudget) -> str:
    """One sentence if there is no room for it: by how much, and the nearest that fits; "" if there is."""
    needed = need_bytes(p, device_kind)
    lacking = needed - room.bytes_a_rank
    if lacking <= 0:
        return ""
    near = nearest_that_fits(p, device_kind, room.bytes_a_rank)
    offered = f"the nearest that fits: {described_change(p, near)}" if near else "nothing near it fits"
    return f"{NO_ROOM} {needed / 2**30:.3g} GiB, {lacking:,.0f} bytes more than it has of {room.where}; {offered}."


def nearest_that_fits(p: ParallelStepParameters, device_kind: str, room_bytes: float) -> ParallelStepParameters | None:
    """The same ranks and global batch with the fewest changes: more ZeRO, smaller micro-batches, less kept.

    Of as many changes the one that needs the most memory, for that is likely the fastest; None if none fits.
    """

    def changes(other: ParallelStepParameters) -> int:
        return sum(getattr(p, name) != getattr(other, name) for name in CHANGED)

    for _, similar in groupby(sorted(_neighbours(p), key=changes), key=changes):
        needs = [(need_bytes(each, device_kind), each) for each in similar]
        fitting = [found for found in needs if found[0] <= room_bytes]
        if fitting:
            return max(fitting, key=lambda found: found[0])[1]
    return None


def described_change(p: ParallelStepParameters, near: ParallelStepParameters) -> str:
    """As in `zero_stage 0 -> 2, batch 4 -> 1`."""
    pairs = [(name, getattr(p, name), getattr(near, name)) for name in CHANGED]
    return ", ".join(f"{name} {before} -> {after}" for name, before, after in pairs if before != after)


def _neighbours(p: ParallelStepParameters) -> Iterator[ParallelStepParameters]:
    stages = range(p.zero_stage, LAST_STAGE + 1) if p.data > 1 else (p.zero_stage,)
    sequences = p.batch * p.micro_batches
    batches = [batch for batch in range(p.batch, 0, -1) if sequences % batch == 0]
    kept = dict.fromkeys((p.checkpointing, *((Checkpointing("every"),) if p.checkpointing.kind != "every" else ())))
    for stage, batch, checkpointing in product(stages, batches, kept):
        near = replace(p, zero_stage=stage, batch=batch, micro_batches=sequences // batch, checkpointing=checkpointing)
        try:
            near.validate()
        except UserError:
            continue
        if near != p:
            yield near


def find_calibration(results: Path, slug: str) -> Calibration:
    """The laws fitted to this machine's newest run that can be calibrated from, or the file that `calibrate` left.

    `slug` is the machine's folder in `results`; the newer one of the two is used. Raises UserError that says how to
    make one.
    """
    saved = results / slug / FILE
    for run in runs_of(results, slug, PROBE):
        if saved.is_file() and saved.stat().st_mtime >= (run.path / "run.json").stat().st_mtime:
            break
        identity = run.manifest.get("identity", {})
        try:
            cores = int(identity.get("cores") or cpu.detect().usable_cores)
            return calibrated_cpu(str(identity.get("model", slug)), cores, run.records(), origin_of(run))
        except UserError:
            continue  # a damaged or unfinished run is no reason not to take the one before
    if saved.is_file():
        return load_calibration(saved)
    probe = PROBE if slug.startswith("cpu") else "calibration"
    raise UserError(
        f"Nothing in {results / slug} says what kernels cost here: `pyperf-suite run {probe}` measures it in "
        "under two minutes."
    )


def predict(p: ParallelStepParameters, calibration: Calibration, cores: int | None = None) -> StudyPrediction:
    """A configuration by the laws as calibrated; `cores` are those that all ranks of a CPU share, by default all.

    Raises UserError if the calibration says nothing of such a step.
    """
    p.validate()
    if p.engine != "torch":
        raise UserError(f"The laws of a study are of torch's engine, not of {p.engine}: measure it.")
    if p.offload != "none":
        raise UserError(f"The laws of a study say nothing of offload to the {p.offload}: measure it.")
    if calibration.device_kind == "cpu":
        step = predicted_step(laws_of(calibration), p, cores or cpu.detect().usable_cores)
    else:
        prices = Prices(calibration, dtype=LAW_DTYPE[p.dtype])
        step = step_time(calibration, p.dimensions, step_plan(p), None, prices)
    needs = memory_by_rank(p, "cpu" if calibration.device_kind == "cpu" else "cuda")
    counted = tuple({name: float(getattr(need, name)) for name in COUNTED} for need in needs)
    return StudyPrediction(float(step.seconds), counted)


def predictor(calibration: Calibration, device_kind: str, cores: int | None = None) -> Predictor:
    """The same for the study's probe on such a device; None for a configuration that the laws cannot price.

    Raises UserError for laws of the other kind of device, and for a CPU's that are not whole.
    """
    if calibration.device_kind != device_kind:
        of, on, probe = ("CPU", "GPUs", "calibration") if device_kind == "cuda" else ("GPU", "a CPU", PROBE)
        raise UserError(
            f"The calibration was fitted on a {of} ({calibration.gpu}), but this study is on {on}: name one fitted "
            f"there, by `pyperf-suite run {probe}` and `pyperf-suite calibrate`."
        )
    if device_kind == "cpu":
        laws_of(calibration)

    def prediction(case: Case) -> StudyPrediction | None:
        try:
            return predict(case.parameters, calibration, cores)
        except UserError:
            return None

    return prediction
