"""Kernels that cheat fail, each for what it does; kernels that work in unusual ways pass.

cheats.md and honest_kernels.md hold them. count_cheats.py counts how often each is caught.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.record import Case
from pyperf_suite.user_kernels import workload as user_kernel
from pyperf_suite.user_kernels.workload import parameters_of

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

HEAD = """\
import numpy as np

import pyperf_suite as suite


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def exact(x):
    return softmax(x.astype(np.float64))


def rows():
    return np.random.standard_normal((64, 1024)).astype(np.float32)


"""

TORCH_HEAD = """\
import torch

import pyperf_suite as suite


def exact(x):
    return x.double().softmax(-1)


def rows():
    return torch.randn(64, 1024)


"""

CASE = "\n\n\n@suite.kernel()\ndef case():\n    return {launched}\n"
LAUNCHED = "suite.launch(measured, rows(), reference=exact)"


@dataclass(frozen=True)
class Entry:
    """A kernel of a page: its heading, the reason that its record must give ("" for none), and its lines."""

    name: str
    reason: str
    lines: str

    @property
    def on_gpu(self) -> bool:
        """Whether its inputs lie on a GPU."""
        return '"cuda"' in self.lines

    def text(self, function: str) -> str:
        """The bench file, with `measured` under that name."""
        body, _, launched = self.lines.partition("\n# launched as\n")
        head = TORCH_HEAD if "import torch" in body else HEAD
        case = CASE.format(launched=launched.strip() or LAUNCHED)
        return (head + body.rstrip() + case).replace("measured", function)


def entries(page: str) -> list[Entry]:
    """What a page lists."""
    text = (HERE / page).read_text()
    found = re.findall(r"^## (.+?)\n(.*?)```python\n(.*?)\n```", text, re.DOTALL | re.MULTILINE)
    return [Entry(name, about.partition("<")[0].strip(), lines) for name, about, lines in found]


CHEATS, HONEST = entries("cheats.md"), entries("honest_kernels.md")

# Enough for a hundred launches and more, and for every check that a longer trial makes.
EFFORT = Effort(
    SteadyRule(min_time_s=0.01, time_cap_s=0.02),
    StopRule(relative_half_width=0.05, min_samples=10, min_effective_samples=5, time_cap_s=0.05),
)

# Names that say nothing of what a kernel does: each is measured under one of them, and must not depend on which.
NAMES = ("measured", "softmax_v2", "kernel")


def trial(entry: Entry, folder: Path, function: str, written_as: str = "") -> dict[str, Any]:
    """What a worker answers to a trial of the kernel under that name, in a file of its own if none has it."""
    if not written_as:
        (folder / "bench.py").write_text(entry.text(function))
    case = Case(written_as or "bench.py:case", parameters_of(())(), function)
    return measure_case(case, EFFORT, Device("cuda" if entry.on_gpu else "cpu"))


def name_of(entry: Entry) -> str:
    """A name for the kernel that is the same in every process."""
    return NAMES[sum(entry.name.encode()) % len(NAMES)]


def marks(entry: Entry) -> Any:
    """The kernel as a parameter, with what it needs."""
    return pytest.param(entry, id=entry.name, marks=[pytest.mark.gpu] if entry.on_gpu else [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a bench file lies, with a reference process of its own."""
    monkeypatch.setenv(user_kernel.ROOT_VARIABLE, str(tmp_path))
    yield tmp_path
    user_kernel.forget_reference()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where each kernel stands: in a module of its own, imported by one file for all, so one process makes inputs."""
    folder, places = tmp_path_factory.mktemp("honest"), {}
    for number, entry in enumerate(HONEST):
        library = next((each for each in ("triton", "torch") if f"import {each}" in entry.lines), "numpy")
        (folder / f"honest_{number}.py").write_text(entry.text(name_of(entry)))
        with (folder / f"all_{library}.py").open("a") as file:
            file.write(f"from honest_{number} import case as case_{number}\n")
        places[entry.name] = f"all_{library}.py:case_{number}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(user_kernel.ROOT_VARIABLE, str(folder))
        yield places
        user_kernel.forget_reference()


def require(entry: Entry) -> None:
    """Skip where what the kernel is written with is not installed."""
    for module in ("torch", "triton"):
        if f"import {module}" in entry.lines:
            pytest.importorskip(module)


@pytest.mark.parametrize("entry", list(map(marks, CHEATS)))
def test_a_kernel_that_cheats_fails_for_what_it_does(entry: Entry, folder: Path) -> None:
    require(entry)
    answer = trial(entry, folder, name_of(entry))
    assert answer["outcome"] == "failed"
    assert answer["verification"]["reason"] in entry.reason.split(" or ")
    assert not answer["verification"]["passed"]
    assert "metrics" not in answer or answer["verification"]["message"]


@pytest.mark.parametrize("entry", list(map(marks, HONEST)))
def test_a_kernel_that_does_its_work_passes(entry: Entry, honest: dict[str, str], tmp_path: Path) -> None:
    require(entry)
    answer = trial(entry, tmp_path, name_of(entry), honest[entry.name])
    assert answer["outcome"] == "ok", answer["reason"]
    assert answer["verification"]["passed"]
    assert answer["metrics"]["time"]["value"] > 0


REMEMBERING = """\
seen = {}


def measured(x):
    key = x[::97].tobytes()
    if key not in seen:
        seen[key] = np.sort(x)
    return seen[key].copy()


# launched as
suite.launch(measured, np.random.standard_normal(1_000_000), reference=np.sort)"""


def test_what_a_long_launch_remembers_is_of_no_use_to_it(folder: Path) -> None:
    remembering = Entry("a sort that remembers", "", REMEMBERING)
    honest = Entry("a sort", "", REMEMBERING.replace("key not in seen", "True"))
    times = []
    for entry, name in ((remembering, "remembering.py"), (honest, "honest.py")):
        (folder / name).write_text(entry.text("kernel"))
        answer = trial(entry, folder, "kernel", f"{name}:case")
        assert answer["outcome"] == "ok", answer["reason"]
        assert answer["verification"]["caching_checked"]
        times.append(answer["metrics"]["time"]["value"])
    assert times[0] > 0.6 * times[1]


def test_every_cheat_has_a_reason_and_no_two_kernels_one_name() -> None:
    assert len(CHEATS) >= 14
    assert len(HONEST) >= 20
    assert all(entry.reason for entry in CHEATS)
    assert not any(entry.reason for entry in HONEST)
    names = [entry.name for entry in CHEATS + HONEST]
    assert len(set(names)) == len(names)
