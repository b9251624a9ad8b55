"""Check the whole GPU path step by step, each step under a time limit; tools/gpu_check.sh starts it, docs/gpu.md tells.

Log, summary and records are complete whenever this is killed. It needs nothing but the standard library, since its
first step installs the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
VENV_PYTHON = ROOT / ".venv" / "bin" / "python"
CACHE = ROOT / "build" / "gpu_check" / "kernels"  # what `prepare` fills if no folder is named
OWN_KERNELS = CACHE.with_name("own_kernels")
SECONDS = 525  # of a call: below 9 minutes with what it takes to end
STEP_LOG_BYTES = 2**20  # of a step's output; beyond that only its last lines
LAST_LINES = 100
REFRESH_S = 20  # how often records are copied out while a step runs
GRACE_S = 5
LONGEST = 300  # characters said of a step in the summary

PYTHON, SUITE, PYTEST = (
    "{python}",
    ("{python}", "-m", "pyperf_suite"),
    ("{python}", "-m", "pytest", "-v", "--tb=short", "-m", "gpu"),
)
SHAPES = "4096x4096x4096,8192x8192x8192"
OTHER_SHAPES = "16384x4096x4096,4096x14336x4096,8192x28672x8192,2048x4096x4096,512x8192x8192,128x8192x8192"


@dataclass(frozen=True)
class Step:
    """One command and its share of the call's time; time that earlier steps left over is added to it.

    In the command, `{python}` is the environment's Python, `{runs}` the folder of results, `{kernels}` that of compiled
    kernels. Tests run in `processes` that are replaced if they die; 0 for what is no test.
    """

    name: str
    seconds: float
    command: tuple[str, ...]
    processes: int = 0
    planned: float = 0.0  # seconds on a GPU, where `seconds` are those on the double
    needs: str = ""  # what the double is not


def of_tests(name: str, seconds: float, *arguments: str, processes: int = 1) -> Step:
    """GPU tests; those that time nothing can share the GPU, and mostly wait for the host."""
    return Step(name, seconds, (*PYTEST, *arguments), processes)


def probe(name: str, seconds: float, *arguments: str, needs: str = "") -> Step:
    """A run of the suite whose records are kept."""
    return Step(name, seconds, (*SUITE, *arguments, "--device", "cuda:0", "--results", "{runs}"), needs=needs)


KERNELS = ("gemm_sm90", "attention_sm90", "gemm_sm80", "triton_matmul", "triton_attention")


def sanitized(tool: str, seconds: float, kernels: Sequence[str] = KERNELS) -> Step:
    """The first case of each test of the kernels under a tool of compute-sanitizer.

    A hundred launches of a large product are left out: they alone would take all the time.
    """
    sanitizer = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--target-processes", "all")
    chosen = ("--first-of-each", "-k", "not hundred", *(f"tests/core/gpu/test_{name}.py" for name in kernels))
    return Step(tool, seconds, (*sanitizer, *PYTEST, *chosen))


MAKE = ("make", f"PYTHON={sys.executable}", ".venv/.made") if shutil.which("make") else ()  # only where out of date
SHARED = max(1, min(8, (os.cpu_count() or 1) // 2))
INSTALL = Step("install", 80, MAKE or (sys.executable, "tools/make_venv.py", ".venv"))
FIRST_USE = "test_tile_wave or test_baseline or test_precision"
LOAD = "import time, torch; a = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16); end = time.time() + {s}"
LOAD += "\nwhile time.time() < end: a @ a; torch.cuda.synchronize()"
TRANSPOSED = ("shape=300x520x512", "layout=TT", "dtype=bfloat16")


def axes(*values: str) -> tuple[str, ...]:
    """Options of `run` that replace these axes."""
    return tuple(word for value in values for word in ("-a", value))


# Starts a command so often at once, its last word the folder of each, and ends with the worst exit code.
ALL_AT_ONCE = (
    "import subprocess, sys; count, *command, folder = sys.argv[1:]; "
    "running = [subprocess.Popen([*command, f'{folder}/{n}']) for n in range(int(count))]; "
    "sys.exit(max(each.wait() for each in running))"
)


def at_once(count: int, step: Step) -> Step:
    """Run `count` of the step's commands next to each other."""
    return replace(
        step, command=("{python}", "-c", ALL_AT_ONCE.replace("{", "{{").replace("}", "}}"), str(count), *step.command)
    )


PARTS: dict[str, tuple[Step, ...]] = {
    "1": (
        INSTALL,
        Step("compile", 20, ("{python}", "tools/gpu_check.py", "prepare", "{kernels}", "--python", "{python}")),
        Step("doctor", 10, (*SUITE, "doctor")),
        of_tests("CUDA host", 30, "tests/core/gpu/test_cuda_host.py", "tests/core/hardware/test_machine.py"),
        of_tests("inputs", 20, "tests/core/gpu/test_inputs_on_gpu.py"),
        of_tests("GEMM on Hopper", 40, "tests/core/gpu/test_gemm_sm90.py", processes=SHARED),
        of_tests("attention in Triton", 75, "tests/core/gpu/test_triton_attention.py", processes=SHARED),
        of_tests("GEMM in Triton", 40, "tests/core/gpu/test_triton_matmul.py", processes=SHARED),
        of_tests("GEMM on Ampere", 20, "tests/core/gpu/test_gemm_sm80.py", processes=SHARED),
        of_tests("GEMM as measured", 85, "tests/core/gpu/test_matmul_on_gpu.py"),
        of_tests("attention as measured", 105, "tests/core/gpu/test_attention_on_gpu.py"),
    ),
    "2": (
        INSTALL,
        probe("baseline of large squares", 120, "run", "baseline", "-a", f"shape={SHAPES}"),
        probe("accept", 60, "accept"),
        probe(
            "attention at head_dim 64 and 128", 60, "run", "attention_heads", "-a", "implementation=triton,sdpa_flash",
            "-a", "hidden=4096", "-a", "heads=64,32", "-a", "phase=forward", "-a", "mask=causal,full",
            "-a", "varied_splits=2",
        ),
        probe("baseline of layers", 85, "run", "baseline", "-a", f"shape={OTHER_SHAPES}"),
        probe("tile and wave quantization", 75, "run", "tile_wave"),
    ),
    "3": (
        INSTALL,
        of_tests("NCCL", 60, "tests/core/native/test_nccl_on_gpu.py", "tests/core/gpu/test_collective_on_gpu.py"),
        of_tests("users' kernels", 30, "tests/core/gpu/test_user_kernel_on_gpu.py"),
        sanitized("memcheck", 70),
        sanitized("racecheck", 70),
        probe("collectives of one rank", 35, "collectives", "--ranks", "1"),
        probe("calibration", 50, "run", "calibration"),
        probe("training", 70, "run", "block", "backward", "optimizer", "precision", "memory"),
    ),
    # A quarter of an hour, starts included, for what no GPU has seen; the parts before are for people with time.
    "short": (
        replace(INSTALL, seconds=32),
        Step("clocks and power", 3, ("nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE")),
        probe(
            "heads, alignment, waves, products", 155, "run", "attention_heads", "alignment", "tile_wave", "baseline",
            "--budget", "145",
            *axes(
                "attention_heads.implementation=sdpa_default,sdpa_cudnn,sdpa_flash,triton",
                "attention_heads.hidden=4096", "attention_heads.heads=64,32,16",
                "attention_heads.head_dim=72,80,96,112,160,192,256", "attention_heads.heads_of_head_dim=32",
                "attention_heads.varied_splits=0",
                "alignment.ladder=1,2,4,8,16,32,64,128", "alignment.along=m,n,k", "alignment.dtype=bfloat16",
                "alignment.real=vocabulary,ffn", "tile_wave.offset=0,8",
                "baseline.shape=4096x4096x4096,8192x8192x8192,512x8192x8192,2048x4096x4096",
            ),
        ),
        Step(
            "first use under pytest", 45,
            (
                "{python}", "-m", "pytest", "--pyargs", "pyperf_suite.benchmarks", "--benchmark-only", "--suite-device",
                "cuda:0", "-k", FIRST_USE, "--benchmark-json", "{runs}/benchmark.json", "--suite-results", "{runs}",
            ),
        ),
        probe(
            "ab of two tiles", 95, "ab", "--old", "tile=128x256x64:c2", "--new", "tile=128x128x64", "baseline", "-k",
            "cuda_sm90", "--budget", "80", "--fail-on", "failed",
            *axes("shape=8192x8192x8192", "implementation=cuda_sm90", "tile=128x256x64:c2"),
        ),
        probe(
            "sustained", 50, "run", "baseline",
            *axes("mode=sustained", "shape=8192x8192x8192", "implementation=cuda_sm90", "tile=128x256x64:c2"),
        ),
        of_tests("attention on Hopper", 24, "tests/core/gpu/test_attention_sm90.py", processes=SHARED),
        *(
            probe(
                f"attention blocks at head_dim {4096 // heads}", 28, "run", "attention_heads", "--budget", "26",
                *axes(
                    "implementation=cuda_sm90,sdpa_cudnn,triton,sdpa_flash,sdpa_default", "hidden=4096",
                    f"heads={heads}", "phase=forward", "mask=full,causal", "varied_splits=1",
                    f"head_dim={4096 // heads}", f"heads_of_head_dim={heads}", "blocks=chosen,rivals",
                ),
                needs="Triton's driver",
            )
            for heads in (64, 32)
        ),
        probe(
            "alignment of other types", 70, "run", "alignment", "--budget", "60",
            *axes("dtype=tfloat32,float8_e4m3fn,float16", "along=n,k", "ladder=1,2,4,8,16,32,64"),
        ),
    ),
    "short2": (
        sanitized("memcheck", 22, KERNELS[:1]),
        sanitized("racecheck", 22, KERNELS[:1]),
        of_tests(
            "users' kernels and NCCL", 35, "tests/core/gpu/test_user_kernel_on_gpu.py",
            "tests/core/native/test_nccl_on_gpu.py", "--first-of-each",
        ),
        of_tests(
            "mended since", 20, "tests/core/gpu/test_matmul_on_gpu.py", "tests/core/gpu/test_triton_matmul.py", "-k",
            "each_dtype or types_of_tensor_cores", "--first-of-each", processes=SHARED,
        ),
        Step(
            "watch", 15, (*SUITE, "watch", "--results", "{runs}", "--", "{python}", "-c", LOAD.format(s=10)),
            needs="torch's CUDA",
        ),
        Step(
            "ncu of the unexplained wave", 15,
            (
                "ncu", "--clock-control", "none", "--target-processes", "all", "--kernel-name", "regex:gemm",
                "--metrics", "lts__t_sectors_op_write.sum,sm__cycles_elapsed.max", "--launch-count", "12",
                "{python}", "-m", "pyperf_suite", "run", "baseline", "--device", "cuda:0", "--results", "{runs}/ncu",
                *axes("shape=2048x2688x2048,2048x2696x2048,2048x2816x2048", "implementation=cuda_sm90",
                      "tile=128x128x64"),
            ),
        ),
        probe("a zero of cuBLAS, alone", 8, "run", "baseline", *axes(*TRANSPOSED)),
        at_once(8, probe("a zero of cuBLAS, eight at once", 13, "run", "baseline", *axes(*TRANSPOSED))),
    ),
}  # fmt: skip
CALL_SECONDS = {"short": 530, "short2": 150}


# Factor of a step's time on the double of libcuda: two cores stand for the sixteen of a GPU machine.
DOUBLE_SLOWDOWN = 8
SMALL_SHAPE = "256x256x256"
SMALL = {
    "tile_wave": ("tile=64x64x64", "k=128", "across=1", "waves=1", "offset=0", "inside=0"),
    "alignment": ("base=fprop:128x256x256", "along=n", "ladder=1,8", "tokens=64", "hidden=256", "dtype=bfloat16"),
    "attention_heads": ("hidden=256", "heads=4", "head_dim=64", "heads_of_head_dim=4", "seq=128", "batch=1"),
}


def on_the_double(step: Step) -> Step:
    """The step as the double of libcuda can execute it: of each test the first case, and small products."""
    command = step.command
    if "pytest" in command and "--pyargs" not in command:
        command = command[command.index("{python}") :]  # the double itself checks addresses, as compute-sanitizer does
        command += () if "--first-of-each" in command else ("--first-of-each", "-k", "not hundred")
    # An axis of shapes has a small one in their place; of `for n in …` the shapes within the script.
    command = tuple(re.sub(r"shape=[\dx,]+", f"shape={SMALL_SHAPE}", word) for word in command)
    for probe_name in SMALL if "run" in command else ():
        if probe_name in command:
            own = axes(*(f"{probe_name}.{axis}" for axis in SMALL[probe_name]))
            command = (*command[:-4], *own, *command[-4:])
    if "--pyargs" in command:
        small = (*SMALL.items(), ("baseline", (f"shape={SMALL_SHAPE}",)))
        command += tuple(f"--suite-axis={name}.{axis}" for name, values in small for axis in values)
    seconds, processes = DOUBLE_SLOWDOWN * step.seconds, min(step.processes, 1)
    return replace(step, command=command, seconds=seconds, processes=processes, planned=step.seconds)


@dataclass
class Outcome:
    """Outcome of a step: passed, failed, skipped (every test of it), timed out, running, not run."""

    step: str
    planned: float = 0.0
    outcome: str = "not run"
    seconds: float = 0.0
    last: str = ""

    @property
    def line(self) -> str:
        """As in `passed       12 of   30 s  doctor: 36 checks ok`."""
        return f"{self.outcome:9} {self.seconds:5.0f} of {self.planned:4.0f} s  {self.step}: {self.last}"


@dataclass(frozen=True)
class Figure:
    """A measured quantity and its target; `value` is None if no record gives it."""

    name: str
    value: float | None
    target: float
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value is not None and self.value >= self.target


def figures(records: Iterable[dict[str, Any]]) -> list[Figure]:
    """Return the figures that judge the GPU path: fastest tile over cuBLAS, TFLOP/s at 8192³, attention over flash."""
    samples: dict[tuple[str, str, tuple[Any, ...], str], list[float]] = {}
    for record in records:
        key = _key(record)
        if key and record["kind"] == "timing" and record["outcome"] == "ok":
            samples.setdefault(key, []).append(record["metrics"]["time"]["value"])
    # The median over processes; of several tiles and schedules of a kernel the fastest.
    best: dict[tuple[str, str, tuple[Any, ...]], float] = {}
    for (operator, implementation, problem, _), times in samples.items():
        whose = (operator, implementation, problem)
        best[whose] = min(best.get(whose, math.inf), statistics.median(times))
    tile, triton = (_ratios(best, "matmul", ours, "cublas") for ours in ("cuda_sm90", "triton"))
    means = [statistics.geometric_mean(ratios.values()) if ratios else None for ratios in (tile, triton)]
    flash = _ratios(best, "attention", "triton", "sdpa_flash")
    square = [
        2 * 8192**3 / seconds / 1e12
        for (operator, name, problem), seconds in best.items()
        if (operator, name) == ("matmul", "cuda_sm90") and problem[:3] == (8192, 8192, 8192)
    ]
    return [
        Figure(f"our fastest tile / cuBLAS, geometric mean over {len(tile)} of 8 shapes", means[0], 0.95),
        Figure("our fastest tile at 8192 x 8192 x 8192", max(square, default=None), 760, "TFLOP/s"),
        Figure(f"Triton / cuBLAS, geometric mean over {len(triton)} of 8 shapes", means[1], 0.85),
        *(
            Figure(
                f"Triton's attention / flash, forward, head_dim {size}, slowest case",
                min((ratio for problem, ratio in flash.items() if problem[0] == size), default=None),
                0.8,
            )
            for size in (64, 128)
        ),
    ]


def _key(record: dict[str, Any]) -> tuple[str, str, tuple[Any, ...], str] | None:
    """Operator, implementation, what is computed, and all parameters; None if no figure takes the case."""
    case = record.get("case", {})
    p, operator, implementation = case.get("parameters", {}), case.get("operator"), str(case.get("implementation"))
    exact = json.dumps([p, case.get("mode")], sort_keys=True)
    if operator == "matmul" and record.get("probe") == "baseline":
        problem = tuple(p.get(name) for name in ("m", "n", "k", "layout", "dtype"))
        return operator, implementation, problem, exact
    if operator == "attention" and not p.get("backward", False):
        others = {name: value for name, value in p.items() if name not in ("head_dim", "blocks")}
        return operator, implementation, (p.get("head_dim"), json.dumps(others, sort_keys=True)), exact
    return None


def _ratios(
    best: dict[tuple[str, str, tuple[Any, ...]], float], operator: str, ours: str, theirs: str
) -> dict[tuple[Any, ...], float]:
    """By problem, the other implementation's time over ours."""
    return {
        problem: best[operator, theirs, problem] / seconds
        for (of, name, problem), seconds in best.items()
        if (of, name) == (operator, ours) and (operator, theirs, problem) in best
    }


@dataclass
class Check:
    """One call: its steps, and the folder that takes `gpu_check_N.log`, `.txt` and `.tar.gz`."""

    part: str
    steps: Sequence[Step]
    folder: Path
    python: str
    seconds: float = SECONDS
    grace_s: float = GRACE_S  # of its time a step that is stopped has to say what it found
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.runs = ROOT / "build" / "gpu_check" / f"{self.part}-{os.getpid()}"
        self.outcomes = [Outcome(step.name, step.planned or step.seconds) for step in self.steps]
        # Budgets are shares of the whole, so that a shorter call (a rehearsal) cuts each step by the same share.
        self.share = min(1.0, self.seconds / sum(step.seconds for step in self.steps))
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Every step in turn; 1 if one did not pass or a figure misses its target."""
        began = time.monotonic()
        self.runs.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"gpu_check_{self.part}.log").open("wb") as log:
            for number, (step, outcome) in enumerate(zip(self.steps, self.outcomes, strict=True)):
                later = sum(each.seconds for each in self.steps[number + 1 :]) * self.share
                allowed = self.seconds - (time.monotonic() - began) - later
                self._one(step, outcome, allowed, log)
                self.publish()
                print(outcome.line, flush=True)
                if step.name == INSTALL.name and outcome.outcome != "passed":
                    break  # nothing else can run
        shutil.rmtree(self.runs, ignore_errors=True)
        print(self._written)
        return int(any(outcome.outcome != "passed" for outcome in self.outcomes) or self._missed)

    def _one(self, step: Step, outcome: Outcome, allowed: float, log: Any) -> None:
        """Run one step for the time allowed, its output going to the log as it comes."""
        if step.planned and step.needs:
            outcome.outcome, outcome.last = "skipped", f"needs {step.needs}"
            return
        outcome.outcome = "running"
        self.publish()
        kernels = os.environ.get("PYPERF_CACHE_DIR", CACHE)
        command = [word.format(python=self.python, runs=self.runs, kernels=kernels) for word in step.command]
        counts = self.runs / f"{step.name.replace(' ', '_')}.xml"
        if "pytest" in command:
            command.append(f"--junitxml={counts}")
        has_xdist = [self.python, "-c", "import xdist"]
        if step.processes and not subprocess.run(has_xdist, capture_output=True).returncode:
            command += ["-n", str(step.processes), "--max-worker-restart", "20"]
        log.write(f"\n== {step.name}, at most {allowed:.0f} s: {' '.join(command)}\n".encode())
        log.flush()
        began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except FileNotFoundError as error:
            outcome.outcome, outcome.last = "skipped", f"there is no {error.filename} here"
            return
        except OSError as error:
            outcome.outcome, outcome.last = "failed", str(error)
            return
        last: deque[bytes] = deque(maxlen=LAST_LINES)
        stdout: Any = self._process.stdout
        reader = threading.Thread(target=_copy, args=(stdout, log, last), daemon=True)
        reader.start()
        refreshed = began
        while self._process.poll() is None and time.monotonic() - began < allowed - min(self.grace_s, allowed / 4):
            time.sleep(0.1)
            if time.monotonic() - refreshed > REFRESH_S:
                outcome.seconds = time.monotonic() - began
                self.publish()
                refreshed = time.monotonic()
        code = self._process.poll()
        self.stop()
        reader.join(self.grace_s)
        if not reader.is_alive():  # else something the step started outlives it and holds the pipe
            stdout.close()
        outcome.seconds = time.monotonic() - began
        outcome.outcome = "timed out" if code is None else "passed" if code == 0 else "failed"
        lines = [line.strip() for line in b"".join(last).decode("utf-8", "replace").splitlines() if line.strip()]
        outcome.last = lines[-1][:LONGEST] if lines else ""
        if counts.exists():
            outcome.last, ran = _counted(counts)
            if outcome.outcome == "passed" and not ran:
                outcome.outcome = "skipped"

    def stop(self) -> None:
        if self._process is None:
            return
        # Interrupted, pytest still prints what failed and a run writes its findings.
        for which in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, which)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.grace_s)
        self._process = None

    def publish(self) -> None:
        """Write summary and records anew; each replaces its file at once, so both are whole at any time."""
        self._written, self._missed = self._summary()
        _replace(self.folder / f"gpu_check_{self.part}.txt", self._written.encode())
        packed = self.runs.with_suffix(".tar.gz")
        with contextlib.suppress(OSError):  # a run is writing: the archive before stays until the next
            with tarfile.open(packed, "w:gz") as archive:
                archive.add(self.runs, "records")
            _replace(self.folder / f"gpu_check_{self.part}.tar.gz", packed.read_bytes())
        packed.unlink(missing_ok=True)

    def _summary(self) -> tuple[str, bool]:
        lines = [f"GPU check, part {self.part}", ""]
        lines += [each.line for each in self.outcomes]
        taken, planned = (sum(getattr(each, name) for each in self.outcomes) for name in ("seconds", "planned"))
        lines += ["", f"{taken:.0f} s taken, {planned:.0f} s planned"]
        missed = False
        if self.part == "2":
            lines += ["", "figure: measured, target"]
            records = []
            for journal in sorted(self.runs.rglob("records.jsonl")):
                for line in journal.read_text("utf-8", "replace").splitlines():
                    with contextlib.suppress(ValueError):  # a torn line
                        records.append(json.loads(line))
            for figure in figures(records):
                value = "not measured" if figure.value is None else f"{figure.value:.3g}"
                missed |= not figure.met
                mark = "reached" if figure.met else "MISSED"
                lines.append(f"{mark:9} {figure.name}: {value} {figure.unit}, at least {figure.target:g}")
        passed = sum(each.outcome == "passed" for each in self.outcomes)
        failed = [each.step for each in self.outcomes if each.outcome not in ("passed", "running", "not run")]
        lines += ["", f"{passed} of {len(self.outcomes)} steps passed" + f"; not: {', '.join(failed)}" * bool(failed)]
        return "\n".join(lines) + "\n", missed


def _counted(report: Path) -> tuple[str, bool]:
    """Count the outcomes of a JUnit report; name the first failures, and tell whether any test ran at all."""
    suites = ElementTree.parse(report).getroot().findall("testsuite")
    total, skipped, *wrong = (
        sum(int(suite.get(kind, 0)) for suite in suites) for kind in ("tests", "skipped", "failures", "errors")
    )
    cases = [case for suite in suites for case in suite.findall("testcase")]
    names = [
        case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    reported = f"{total - skipped - sum(wrong)} passed, {sum(wrong)} failed, {skipped} skipped"
    reason = next((found.get("message", "") for case in cases if (found := case.find("skipped")) is not None), "")
    reported += f": {', '.join(names[:3])}" * bool(names) + f": {reason}" * (total == skipped)
    return reported[:LONGEST], total > skipped


def _copy(source: Any, log: Any, last: deque[bytes]) -> None:
    """Copy lines to the log up to a limit, then only the last ones."""
    written, left_out = 0, 0
    for line in source:
        last.append(line)
        if written < STEP_LOG_BYTES:
            log.write(line)
            log.flush()
            written += len(line)
        else:
            left_out += 1
    if left_out:
        log.write(f"[{left_out} lines left out; the last of them:]\n".encode() + b"".join(list(last)[-left_out:]))
        log.flush()


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)


def own_kernels() -> Path:
    """A folder of this user's own with the carried kernels: on the way files may have changed their owner and mode."""
    if OWN_KERNELS.exists() and OWN_KERNELS.stat().st_uid != os.geteuid():
        shutil.rmtree(OWN_KERNELS)
    OWN_KERNELS.mkdir(parents=True, exist_ok=True)
    OWN_KERNELS.chmod(0o700)
    for file in CACHE.glob("*.kernel"):
        copy = OWN_KERNELS / file.name
        shutil.copyfile(file, copy)
        copy.chmod(0o600)
    return OWN_KERNELS


def prepare(folder: Path) -> int:
    """Compile all that the GPU tests launch of our CUDA kernels, on all cores, for a Hopper.

    A kernel's key has NVRTC's version, not the machine. Triton's cache cannot be carried so: its key has a hash of
    Triton's own libraries, which differ between its versions and between versions of Python.
    """
    from pyperf_suite.kernels import attention_sm90, gemm_sm80, gemm_sm90, nvrtc

    began = time.monotonic()
    kernels = Path(gemm_sm90.__file__).parent / "cuda"
    plain = ["--std=c++17"]
    sources = [
        (name, (kernels / name).read_text("utf-8"), {}, gemm_sm90.ARCHITECTURE, plain)
        for name in ("stopwatch.cu", "periodic.cu")
    ]
    fill = {"fill.cuh": (kernels / "fill.cuh").read_text("utf-8")}
    sources.append(("fill.cu", (kernels / "fill.cu").read_text("utf-8"), fill, gemm_sm90.ARCHITECTURE, plain))
    for kernel in (gemm_sm90, attention_sm90, gemm_sm80):
        text, headers = kernel.sources()
        launched = _loaded(
            ROOT / "tests" / "core" / "gpu" / f"test_{kernel.__name__.rpartition('.')[2]}.py"
        ).instances()
        every = sorted({tuple(one.options()) for one in launched})
        sources += [(kernel.SOURCE, text, dict(headers), gemm_sm90.ARCHITECTURE, list(one)) for one in every]
    sources += [source for source in planned_sources() if source not in sources]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ProcessPoolExecutor() as pool:
        kept = sum(pool.map(_compiled, itertools.repeat(str(folder)), sources))
    version = ".".join(map(str, nvrtc.version()))
    print(
        f"{len(sources)} kernels for {gemm_sm90.ARCHITECTURE} in {folder}, {kept} of them kept from before, in "
        f"{time.monotonic() - began:.0f} s. A machine whose NVRTC is {version} takes them; others compile their own."
    )
    return 0


def planned_sources() -> list[tuple[str, str, dict[str, str], str, list[str]]]:
    """Name, source, headers, architecture and options of our CUDA kernels that the short calls run on an H200."""
    from pyperf_suite.hardware import devices
    from pyperf_suite.kernels import attention_sm90, gemm_sm90
    from pyperf_suite.probes import find_probe
    from pyperf_suite.workloads import find_workload
    from pyperf_suite.workloads.attention.attention import HopperAttention
    from pyperf_suite.workloads.matmul.matmul import CudaMatmul

    h200 = devices.Gpu(0, "NVIDIA H200", "GPU-0", (9, 0), 132, 141 * 2**30)
    devices.driver, devices._present = object, lambda: [h200]  # type: ignore[assignment, return-value]
    sources = []
    for step in (step for part in CALL_SECONDS for step in PARTS[part] if step.command[1:4] == (*SUITE[1:], "run")):
        words = [word.split("=", 1) for word in step.command if "=" in word]
        for name in filter({"alignment", "attention_heads", "baseline", "tile_wave"}.__contains__, step.command):
            given = ((axis.rpartition("."), value) for axis, value in words)
            own = {axis: value for (whose, _, axis), value in given if whose in ("", name)}
            for case in find_probe(name).cases("quick", devices.Device("cuda", 0), own):
                implementation = find_workload(case.operator).implementation(case.implementation)
                if isinstance(implementation, CudaMatmul):
                    kernel, instance = implementation.kernel, implementation.specialise(case.parameters, (0, 0, 0))
                elif isinstance(implementation, HopperAttention):
                    kernel, instance = attention_sm90, implementation.specialise(case.parameters)
                else:
                    continue
                text, headers = kernel.sources()
                source = kernel.SOURCE, text, dict(headers), gemm_sm90.ARCHITECTURE, list(instance.options())
                sources += [] if source in sources else [source]
    return sources


def _loaded(path: Path) -> Any:
    """The module in a file of the tests, which import one another from the project's folder."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _compiled(folder: str, source: tuple[str, str, dict[str, str], str, list[str]]) -> bool:
    """True if the folder had the kernel; it has now."""
    from pyperf_suite import _native
    from pyperf_suite.kernels import nvrtc
    from pyperf_suite.workloads.scratch import KernelCache

    return KernelCache(_native.cuda.Compiler(list(nvrtc.wheels())), folder).compile(*source).from_cache


def main() -> int:
    """Parse the command line and run one part."""
    parser = argparse.ArgumentParser(prog="tools/gpu_check.sh", description="Check the GPU path, whole or what is new.")
    parser.add_argument("part", choices=[*PARTS, "prepare"])
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("OUT"), help="by default $OUT")
    parser.add_argument("--seconds", type=float, help="of the whole call (default: 525, short 530, short2 150)")
    parser.add_argument("--python", help="a Python that has pyperf_suite: nothing is installed")
    parser.add_argument("--double", action="store_true", help="rehearse without a GPU, on the double of libcuda")
    requested = parser.parse_args()
    if requested.part == "prepare":
        if Path(sys.executable) != VENV_PYTHON and not requested.python:
            os.execv(VENV_PYTHON, [str(VENV_PYTHON), *sys.argv])
        return prepare(Path(requested.folder or CACHE).resolve())
    requested.seconds = requested.seconds or CALL_SECONDS.get(requested.part, SECONDS)
    if requested.folder is None:
        parser.error("name a folder for log, summary and records, or set OUT")
    if requested.double:
        os.environ.update(_loaded(ROOT / "tests" / "core" / "gpu_double" / "environment.py").environment())
        requested.seconds *= DOUBLE_SLOWDOWN
    elif "PYPERF_CACHE_DIR" not in os.environ:
        os.environ["PYPERF_CACHE_DIR"] = str(own_kernels())
    folder = Path(requested.folder).resolve()
    steps = [step for step in PARTS[requested.part] if not (requested.python and step.name == INSTALL.name)]
    if requested.double:
        # Not all kernels beforehand: the host's compiler takes seconds for each, and few are launched.
        steps = [on_the_double(step) for step in steps if step.name != "compile"]
    check = Check(requested.part, steps, folder, requested.python or str(VENV_PYTHON), requested.seconds)

    def ended(number: int, _: Any) -> None:
        check.stop()
        check.publish()
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    return check.run()


if __name__ == "__main__":
    raise SystemExit(main())
