"""Kernels that cheat and kernels that are honest, as their pages list them: how each is tried, and as what it must end.

python catalogue.py --write makes the table and the list of docs/measured_code.md from cheats.md and uncaught.md.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import os
import re
import shutil
import statistics
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.checks import excluded_rate
from pyperf_suite.measure.sampling import to_the_end
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measuring
from pyperf_suite.runner.profiles import QUICK, Effort
from pyperf_suite.runner.workers import WorkerPool
from pyperf_suite.user_kernels.checks import joined
from pyperf_suite.user_kernels.declared import parameters_of
from pyperf_suite.workloads.workload import AUDIT_VARIABLE

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs" / "measured_code.md"

HEAD = """\
import numpy as np

import pyperf_suite as suite


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def exact(x):
    return softmax(x.astype(np.float64))


def rows():
    return suite.randn(64, 1024)


"""

TORCH_HEAD = """\
import torch

import pyperf_suite as suite


def exact(x):
    return x.double().softmax(-1)


def rows():
    return suite.randn(64, 1024)


"""

C_HEAD = """\
import ctypes
import os
import subprocess
import zlib


def compiled(source, *flags):
    folder, name = os.path.dirname(os.path.abspath(__file__)), f"library_{zlib.crc32(source.encode())}.so"
    path, made = os.path.join(folder, name), os.path.join(folder, f"{os.getpid()}_{name}")
    if not os.path.exists(path):
        command = ["gcc", "-O2", "-shared", "-fPIC", *flags, "-x", "c", "-", "-o", made, "-lm"]
        subprocess.run(command, input=source.encode(), check=True)
        os.replace(made, path)
    return ctypes.CDLL(path)


def pointer(x):
    return ctypes.c_void_p(x.ctypes.data)


"""

CASE = "\n\n\n@suite.kernel({axes})\ndef case({names}):\n    return {launched}\n"
LAUNCHED = "suite.launch(measured, rows(), reference=exact)"

# Names that say nothing of what a kernel does: each is measured under one of them, and must not depend on which.
NAMES = ("measured", "softmax_v2", "kernel")

# Cheats that `make test` tries too.
QUICK_ONES = {"cached by shape", "one row for all", "half precision inside", "indices"}

PASSES, NO_FASTER = "passes", "no faster than honest"

# Share of the honest implementation's time that a kernel may take to be no faster.
LEAST_SHARE = 0.6

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A kernel of a page: its heading, as what a trial of it must end, where it was published, and its lines."""

    name: str
    ends: tuple[str, ...]
    links: tuple[str, ...]
    lines: str

    @property
    def on_gpu(self) -> bool:
        """True if its inputs lie on a GPU."""
        return '"cuda"' in self.lines

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The axes of its cases, as `# launched as, for n=(1, 1000)` names them."""
        found = re.search(r"^# launched as, for (.*)$", self.lines, re.MULTILINE)
        call = ast.parse(f"dict({found.group(1) if found else ''})", mode="eval").body
        assert isinstance(call, ast.Call)
        return {str(each.arg): _evaluated(each.value) for each in call.keywords}

    def cases(self) -> Iterator[Values]:
        """The values of the axes of each case."""
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def one_case(self) -> Values:
        """One of the cases, the same in every process."""
        cases = list(self.cases())
        return cases[sum(self.name.encode()) % len(cases)]

    @property
    def needs(self) -> list[str]:
        """Modules and programs that it cannot do without."""
        modules = [each for each in ("torch", "triton", "ml_dtypes") if f"import {each}" in self.lines]
        return modules + (["gcc"] if "compiled(" in self.lines else [])

    def text(self, function: str) -> str:
        """The bench file, with `measured` under that name."""
        body, _, rest = self.lines.partition("\n# launched as")
        launched = rest.partition("\n")[2].strip() or LAUNCHED
        head = (TORCH_HEAD if "import torch" in body else HEAD) + (C_HEAD if "compiled(" in body else "")
        axes = ", ".join(f"{name}={values!r}" for name, values in self.axes.items())
        case = CASE.format(axes=axes, names=", ".join(self.axes), launched=launched)
        return (head + body.rstrip() + case).replace("measured", function)


def _evaluated(values: ast.expr) -> tuple[Any, ...]:
    found = eval(compile(ast.Expression(values), "axes", "eval"), {"__builtins__": {}})
    return tuple(found) if isinstance(found, tuple) else (found,)


@dataclass(frozen=True)
class Family:
    """A section of a page: its heading, what catches its kernels or what they show, and the kernels."""

    title: str
    about: str
    entries: tuple[Entry, ...]


def families(page: str) -> list[Family]:
    """Return the families that a page lists."""
    _, *sections = re.split(r"^## ", (HERE / page).read_text("utf-8"), flags=re.MULTILINE)
    return [_family(each) for each in sections]


def _family(section: str) -> Family:
    head, *kernels = re.split(r"^### ", section, flags=re.MULTILINE)
    title, _, about = head.partition("\n")
    return Family(title, " ".join(about.split()), tuple(map(_entry, kernels)))


def _entry(text: str) -> Entry:
    found = re.fullmatch(r"(.+?)\n(.*?)```python\n(.*?)\n```\s*", text, re.DOTALL)
    assert found is not None, text
    name, about, lines = found.groups()
    ends, _, seen = about.strip().partition(", seen in ")
    links = tuple(re.findall(r"\[.+?\]\(.+?\)", seen))
    return Entry(name, tuple(ends.split(" or ")) if ends else ("ok",), links, lines)


def entries(page: str) -> list[Entry]:
    """The kernels of all families of a page."""
    return [entry for family in families(page) for entry in family.entries]


def trial(
    entry: Entry,
    folder: Path,
    function: str,
    values: Values,
    written_as: str = "",
    effort: Effort = QUICK.effort,
    implementation: str = "",
) -> dict[str, Any]:
    """Return the last process's answer to a trial of the kernel under that name, in a file of its own if none has it.

    As many processes measure it as the effort has, or until one finds something wrong.
    """
    if not written_as:
        (folder / "bench.py").write_text(entry.text(function), "utf-8")
    parameters = parameters_of(tuple(values))(**values)
    case = Case(written_as or "bench.py:case", parameters, implementation or function)
    device = Device("cuda" if entry.on_gpu else "cpu")
    with WorkerPool(device) if os.environ.get(AUDIT_VARIABLE) != "1" else nullcontext() as pool:
        return _answer(case, effort, device, pool)


def _answer(case: Case, effort: Effort, device: Device, pool: WorkerPool | None) -> dict[str, Any]:
    """Measure in this process where the code runs in others, else in a pool's, which the code may end."""
    earlier, checked = dict[str, Any](), 0
    for process in range(effort.processes):
        if pool is not None:
            answer = pool.measure(process, case, effort)
        else:
            answer = to_the_end(measuring(case, effort, device, earlier=earlier))
        if answer["outcome"] != "ok":
            break
        earlier = joined(earlier, answer["verification"])
        checked += answer["verification"]["launches_checked"]
        answer["verification"]["excludes_errors_in_one_of"] = int(1 / excluded_rate(checked))
    return answer


def end_of(
    entry: Entry, folder: Path, function: str, values: Values, effort: Effort = QUICK.effort
) -> tuple[str, bool]:
    """How a trial ends, and whether it is as the page says."""
    answer = trial(entry, folder, function, values, effort=effort)
    if answer["outcome"] != "ok":
        end = answer.get("verification", {}).get("reason") or f"{answer['outcome']}: {answer['reason'][:200]}"
        return end, any(end == each or f": the function {each}" in end for each in entry.ends)
    if NO_FASTER in entry.ends:

        def seconds(implementation: str) -> float:
            answer = trial(entry, folder, function, values, effort=effort, implementation=implementation)
            return float(answer["metrics"]["time"]["value"])

        # The two are measured after each other: what disturbed one of them looks like a gain, but not in two of three.
        shares = [answer["metrics"]["time"]["value"] / seconds("honest")]
        if shares[0] < LEAST_SHARE:
            shares += [seconds(function) / seconds("honest") for _ in range(2)]
        share = statistics.median(shares)
        return f"{share:.2f} of the honest time", share >= LEAST_SHARE
    rate = answer["verification"]["excludes_errors_in_one_of"]
    bounds = [int(each.rpartition(" ")[2]) for each in entry.ends if each.startswith("errors < 1 in ")]
    if bounds:
        return f"errors < 1 in {rate}", rate <= max(bounds)
    return "ok", bool({"ok", PASSES} & {*entry.ends})


def name_of(entry: Entry) -> str:
    """A name for the kernel that is the same in every process."""
    return NAMES[sum(entry.name.encode()) % len(NAMES)]


def marked(kernels: list[Entry]) -> list[Any]:
    """Kernels as parameters of a test, with what each needs."""
    return [pytest.param(entry, id=entry.name, marks=_marks(entry)) for entry in kernels]


def _marks(entry: Entry) -> list[Any]:
    marks = [pytest.mark.gpu] if entry.on_gpu else []
    marks += [pytest.mark.slow] if entry.name not in QUICK_ONES else []
    marks += [pytest.mark.nightly] if NO_FASTER in entry.ends else []  # two times are compared
    return marks + _skipped(entry)


def _skipped(entry: Entry) -> list[Any]:
    missing = [each for each in entry.needs if not (shutil.which(each) or importlib.util.find_spec(each))]
    return [pytest.mark.skip(f"needs {', '.join(missing)}")] if missing else []


def label(entry: Entry, values: Values) -> str:
    """The kernel and the case."""
    return entry.name + "".join(f", {name}={value}" for name, value in values.items())


def caught() -> str:
    """The table of docs/measured_code.md: a row for each family of cheats, with their number."""
    lines = ["| cheats | where they were seen | what catches them | reason |", "| --- | --- | --- | --- |"]
    for family in families("cheats.md"):
        links = dict.fromkeys(link for each in family.entries for link in each.links)
        ends = dict.fromkeys(end for each in family.entries for end in each.ends)
        reasons = [f"`{end}`" for end in ends if not end.startswith((NO_FASTER, "errors < 1 in"))]
        reasons += ["its bound in the table"] if any(end.startswith("errors < 1 in") for end in ends) else []
        reasons += ["no gain"] if NO_FASTER in ends else []
        about = family.about.replace("|", "\\|")
        row = family.title, len(family.entries), ", ".join(links), about, ", ".join(reasons)
        lines.append("| {} ({}) | {} | {} | {} |".format(*row))
    return "\n".join(lines)


def not_caught() -> str:
    """The list of docs/measured_code.md: a point for each limit, with what was tried."""
    return "\n".join(f"* **{each.title}.** {each.about}{_tried(each.entries)}" for each in families("uncaught.md"))


def _tried(passed: tuple[Entry, ...]) -> str:
    return f" Tried: {'; '.join(each.name for each in passed)}." if passed else ""


def document() -> str:
    """docs/measured_code.md as it has to be."""
    text = DOCUMENT.read_text("utf-8")
    for name, made in (("cheats.md", caught()), ("uncaught.md", not_caught())):
        begin, end = f"<!-- made from {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, after = text.partition(begin)
        text = f"{before}{begin}{made}{end}{after.partition(end)[2]}"
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    DOCUMENT.write_text(document(), "utf-8")
