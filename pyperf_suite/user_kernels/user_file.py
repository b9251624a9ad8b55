"""A user's file in the process that runs its code: loaded, described, its inputs made and its references computed.

Nothing is timed here. Nothing newer than Python 3.9 is used; numpy and torch are used where the user's code does.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import pickle
import platform
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyperf_suite.errors import interpreted_bfloat16, triton_without_gpu
from pyperf_suite.process.serving import libraries
from pyperf_suite.user_kernels import arrays, sensitivity

if TYPE_CHECKING:
    from pyperf_suite.user_kernels.guards import Guards

PACKAGE = Path(__file__).resolve().parent.parent
MOST_LOOKED_AT = 1000
# Requests in which no code of a user's runs, but for what its objects do by themselves.
OWN_REQUESTS = ("fetch", "load", "place", "changed")


class _WithoutBytecode(SourceFileLoader):
    """Leaves nothing next to the file."""

    def set_data(self, *_: Any, **__: Any) -> None:
        """Keep no bytecode."""


class UserFile:
    """One user's file or module, and one case of it. `answer` takes a request and raises only what is not `caught`."""

    is_seeded = True
    caught: tuple[type[BaseException], ...] = (Exception, SystemExit)

    def __init__(self) -> None:
        self._root = Path()
        self._module: Any = None
        self._guards: Guards | None = None
        self._launch: Any = None
        self._function: Any = None
        self.leaves: list[arrays.Leaf] = []
        # By built case: its arguments' layouts, and the findings of `sensitivity` on usual inputs.
        self._layouts: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._subject = "the file"
        self._shown_where = ("", 0)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request with its result, or `{"error": words, "file", "line"}`, or `{"unsupported": words}`."""
        name = request.pop("do")
        try:
            return getattr(self, f"_{name}")(**request)
        except arrays.UserCodeError as reported:
            place = {"file": self._shown(reported.where[0]), "line": reported.where[1]}
            return {"error": str(reported), "reason": reported.reason, **place}
        except self.caught as error:  # whatever a user's code raises, SystemExit too
            if type(error).__name__ == "Unsupported":
                return {"unsupported": str(error)}
            if words := triton_without_gpu(error):
                return {"unsupported": f"{self._subject}: {words}", "witnesses": 1}
            sys.stderr.write("".join(traceback.format_exception(type(error), error, error.__traceback__)[-20:]))
            file, line = self._blamed(error)
            words = f"{self._subject} {_words_of(error)}"
            if name in OWN_REQUESTS and not self._frames_of_users(error):
                words = f"the suite itself failed at {self._subject}'s result, please report it: it {_words_of(error)}"
            witnesses = 1 if name == "start" else _witnesses(error)
            return {"error": words, "file": self._shown(file), "line": line, "witnesses": witnesses}

    def _start(self, root: str, path: Sequence[str], target: str, device: str) -> dict[str, Any]:
        """Import the file or module; `path` comes first on sys.path, then the file's folder or the root."""
        self._root = Path(root)
        is_file = target.endswith(".py")
        file = (self._root / target).resolve()
        self._subject, self._shown_where = target, (str(file) if is_file else "", 0)
        folders = [*path, str(file.parent if is_file else self._root)]
        sys.path[:0] = folders
        self._measure_on(device)
        self._api._device = device
        from pyperf_suite.user_kernels.guards import Guards

        self._guards = Guards()
        sys.meta_path.insert(0, self._guards)
        environment = dict(os.environ)
        if is_file:
            if not file.is_file():
                raise arrays.UserCodeError(f"there is no file {target}")
            loader = _WithoutBytecode(file.stem, str(file))
            spec: Any = importlib.util.spec_from_file_location(file.stem, str(file), loader=loader)
            module = importlib.util.module_from_spec(spec)
            sys.modules[file.stem] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(target)
        if "numpy" in sys.modules:
            importlib.import_module("numpy.random")  # by which inputs are drawn
        # A file may set variables that libraries read as they are imported.
        imported = libraries(folders) if environment == os.environ else []
        theirs = [each for each in imported if each.partition(".")[0] != target.partition(".")[0]]
        return {**self._started(module), "preload": theirs}

    def take(self, module: Any, device: str) -> dict[str, Any]:
        """A module of kernels that is there already, whose arrays are made as they are, under no seed."""
        self.is_seeded = False
        self._root = Path.cwd()
        self._measure_on(device)
        return self._started(module)

    def _started(self, module: Any) -> dict[str, Any]:
        self._module = module
        self._library = "torch" if "torch" in sys.modules else "numpy"
        return {
            "library": self._library,
            "versions": _versions(),
            "python": f"{platform.python_implementation()} {platform.python_version()}",
        }

    def _measure_on(self, device: str) -> None:
        from pyperf_suite.user_kernels import api

        self._api: Any = api
        self._device = device
        if device.startswith("cuda"):
            api._gpu = self._gpu

    def _replaced(self) -> dict[str, Any]:
        """Name the guarded functions that are no longer what they were."""
        return {"replaced": self._guards.replaced() if self._guards is not None else []}

    def _gpu(self) -> Any:
        from pyperf_suite.workloads.backends import cuda_device

        return cuda_device(int(self._device.partition(":")[2] or 0))

    def _kernels(self, named: str) -> list[Any]:
        of_file = [
            each
            for each in vars(self._module).values()
            if isinstance(each, self._api.DeclaredKernel) and each.builder.__module__ == self._module.__name__
        ]
        if not named:
            return of_file
        kernel = getattr(self._module, named, None)
        if not isinstance(kernel, self._api.DeclaredKernel):
            there = ", ".join(each.name for each in of_file[:10]) or "none"
            what = "there is no kernel" if kernel is None else "no @suite.kernel stands above"
            line = getattr(getattr(kernel, "__code__", None), "co_firstlineno", 0)
            where = ("" if kernel is None else inspect.getsourcefile(self._module) or "", line)
            raise arrays.UserCodeError(f"{what} {named} in it: its kernels are {there}", where)
        return [kernel]

    def _describe(self, kernel: str, seed: int) -> dict[str, Any]:
        kernels = self._kernels(kernel)
        if not kernels:
            raise arrays.UserCodeError(
                "it declares no kernel: put @suite.kernel above a function with suite.launch(...)"
            )
        self._api._library = self._library
        return {"kernels": [self._described(each, seed) for each in kernels]}

    def _described(self, kernel: Any, seed: int) -> dict[str, Any]:
        failed: dict[str, Any] = {}
        self._subject, self._shown_where = kernel.name, (kernel.file, kernel.line)
        for axes in kernel.cases():
            try:
                self._api.seed_everything(seed)
                launch = kernel(**axes)
            except BaseException as error:
                file, line = self._blamed(error)
                words = f"{kernel.name} {_words_of(error)}"
                failed = failed or {"error": words, "file": self._shown(file), "line": line}
                continue
            return {"name": kernel.name, "axes": kernel.axes, "implementations": list(launch.functions)}
        return failed

    def _build(self, kernel: str, axes: dict[str, Any], implementation: str, seed: int, library: str) -> dict[str, Any]:
        self._api._library = library
        self._api.draw_inputs(self._api.USUAL)
        self._take_case(kernel, axes)
        self._launch = self._built(seed)
        if implementation not in self._launch.functions:
            raise arrays.UserCodeError(
                f"this case has no implementation {implementation!r}: it has {', '.join(self._launch.functions)}"
            )
        self._implementation = self._subject = implementation
        self._function = self._launch.functions[implementation]
        where = self._api._where(self._function)
        self._shown_where = where if where[0] else self._shown_where
        self.leaves = self._find_leaves(self._launch)
        self._layouts[kernel, repr(axes)] = [arrays.comparable(leaf.spec) for leaf in self.leaves]
        launch, closed_over = self._launch, _closed_over(self._function)
        judge_file, judge_line = self._api._where(launch.reference or launch.check)
        return {
            "leaves": [leaf.spec for leaf in self.leaves],
            "bytes": launch.bytes,
            "flop": launch.flop,
            "random": launch.random,
            "tolerance": launch.tolerance,
            "baseline": launch.baseline,
            "implementations": list(launch.functions),
            "inputs": list(launch.inputs),
            "has_reference": launch.reference is not None,
            "has_check": launch.check is not None,
            "doc": self._kernel.doc,
            "file": self._shown(self._shown_where[0]),
            "line": self._shown_where[1],
            "kernel_line": self._kernel.line,
            "kernel_file": self._shown(self._kernel.file),
            "reference_at": f"{self._shown(judge_file)}:{judge_line}" if judge_file else "",
            "closes_over": [name for name, held in closed_over.items() if any(True for _ in arrays.arrays_in(held))],
            "objects": _objects_with_arrays([self._function, closed_over, launch.args, launch.kwargs]),
            "versions": _versions(),
            "interpreted": interpreted_bfloat16(leaf.spec.get("dtype", "") for leaf in self.leaves),
        }

    def _take_case(self, kernel: str, axes: dict[str, Any]) -> None:
        self._axes, self._kernel = axes, self._kernels(kernel)[0]
        self._subject, self._shown_where = self._kernel.name, (self._kernel.file, self._kernel.line)

    def _built(self, seed: int) -> Any:
        if self.is_seeded:
            self._api.seed_everything(seed)
        try:
            return self._kernel(**self._axes)
        except TypeError as error:
            if "suite.launch(function" in str(error):
                raise arrays.UserCodeError(str(error), (self._kernel.file, self._kernel.line)) from error
            raise

    def _find_leaves(self, launch: Any) -> list[arrays.Leaf]:
        leaves: list[arrays.Leaf] = []
        self._order: list[int] = []  # of what `_walk` gives, which leaf it is
        outputs = {id(each) for each in launch.outputs}
        arguments = [*enumerate(launch.args), *launch.kwargs.items()]
        for key, value in arguments:
            for kind, each in arrays.walk(value):
                same = [at for at, leaf in enumerate(leaves) if kind == "array" and each is leaf.value]
                self._order.append(same[0] if same else len(leaves))
                if not same:
                    role = "output" if id(each) in outputs else "modified" if key in launch.modifies else "input"
                    leaves.append(arrays.Leaf(kind, each, role, key))
        arrays.lay_out([leaf.spec for leaf in leaves])
        return leaves

    def _make(self, kernel: str, axes: dict[str, Any], seed: int, slot: str, inputs: str) -> dict[str, Any]:
        """Write a case's inputs of a kind to a slot; `unsuited` where none can be made of an unusual kind."""
        self._take_case(kernel, axes)
        self._slot, self._kind = slot, inputs
        self._api.draw_inputs(inputs)
        try:
            launch = self._built(seed)
        except Exception as error:
            if inputs == self._api.USUAL:
                raise
            return {"unsuited": _words_of(error)}
        self._launch = launch
        leaves = self._find_leaves(launch)
        if [arrays.comparable(leaf.spec) for leaf in leaves] != self._layouts[kernel, repr(axes)]:
            raise arrays.UserCodeError(
                "its inputs differ from call to call in more than their values: shapes and dtypes follow from the axes",
                (self._kernel.file, self._kernel.line),
            )
        self.leaves = leaves
        with open(slot, "r+b") as file:
            for leaf in leaves:
                leaf.write(file)
            file.flush()
        plain = [leaf.value for leaf in leaves if leaf.kind == "plain"]
        with open(f"{slot}.plain", "wb") as file:
            pickle.dump(plain, file)
        return {"plain": arrays.digest(leaves, [leaf.value for leaf in leaves]), "drawn": self._api._drawn}

    def _expect(self, expected: str, sizes: str, budget_s: float, terms: float | None) -> dict[str, Any]:
        """Write what the reference makes of the inputs made last. Nothing of it is anywhere before the judge asks.

        With a path for `sizes`, also how far rounding moves each element (sensitivity.py); the number of `terms` where
        it is known. Answers with `unsuited` where the reference fails on inputs that are not of the usual kind.
        """
        self._subject, launch = "the reference", self._launch
        reference = launch.reference or launch.functions[launch.baseline]
        owned = [arrays.extent(leaf.value) for leaf in self.leaves if leaf.kind == "array" and leaf.role == "input"]
        try:
            out = self._result_of(reference, [leaf.value for leaf in self.leaves])
        except Exception as error:
            if self._kind == self._api.USUAL:
                raise
            return {"unsuited": _words_of(error)}
        if launch.reference is not None and out is None:
            raise arrays.UserCodeError("the reference returned nothing", self._api._where(launch.reference))
        arrays.write_result(out, expected, exact_types=False, where=self._api._where(reference), named="the reference")
        shared = any(arrays.overlaps(each, owned) for each in arrays.arrays_in(out))
        reported = self._measure_sizes(reference, out, sizes, budget_s, terms) if sizes else {}
        return {**reported, "overlaps": shared, "repeats": arrays.repeats(list(arrays.arrays_in(out)))}

    def _result_of(self, reference: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Return the reference's result for arguments of these values, or the arrays that it writes if it has none."""
        launch, leaves = self._launch, (values[at] for at in self._order)
        args = [arrays.replaced(each, leaves) for each in launch.args]
        kwargs = {name: arrays.replaced(each, leaves) for name, each in launch.kwargs.items()}
        # A measured function that stands in for a reference computes as the one that is compared with it does.
        with arrays.exact_arithmetic() if launch.reference is not None else contextlib.nullcontext():
            out = reference(*args, **kwargs)
        if out is None:
            written = [each for leaf, each in zip(self.leaves, values) if leaf.role != "input" and leaf.kind == "array"]
            out = written[0] if len(written) == 1 else tuple(written) if written else None
        return out

    def _measure_sizes(
        self, reference: Callable[..., Any], out: Any, path: str, budget_s: float, terms: float | None
    ) -> dict[str, Any]:
        moving = [leaf for leaf in self.leaves if leaf.role != "output"]

        def evaluate(change: Callable[[Any], Any]) -> Any:
            values = [leaf.room() if leaf.role == "output" else leaf.value for leaf in self.leaves]
            with open(self._slot, "rb") as file:
                for at, leaf in enumerate(self.leaves):
                    if leaf.role == "modified" and leaf.kind == "array":
                        values[at] = leaf.room()
                        leaf.read(file, values[at])
                    if leaf.role != "output":
                        values[at] = change(values[at])
            return self._result_of(reference, values)

        found, reported = sensitivity.measure(evaluate, out, [leaf.value for leaf in moving], budget_s, terms)
        with open(path, "wb") as file:
            for each in found.values():
                file.write(each.tobytes())
        return {**reported, "sizes": [[name, list(each.shape)] for name, each in found.items()]}

    def _check(self, result: str) -> dict[str, Any]:
        with open(f"{result}.json") as file:
            tree = json.load(file)
        return self._check_object(arrays.read_result(tree, result, self._library))

    def _check_object(self, out: Any) -> dict[str, Any]:
        """Ask the file's own check about a result of the inputs made last."""
        launch = self._launch
        try:
            said = launch.check(out, *launch.args, **launch.kwargs)
        except AssertionError as error:
            return {"passed": False, "message": str(error).strip().split("\n")[0] or "an assertion failed"}
        if isinstance(said, str):
            return {"passed": not said, "message": said}
        return {"passed": said is None or bool(said), "message": ""}

    def _shown(self, file: str) -> str:
        try:
            return Path(file).resolve().relative_to(self._root.resolve()).as_posix() if file else ""
        except ValueError:
            return file

    def _blamed(self, error: BaseException) -> tuple[str, int]:
        """File and line of the innermost frame that is the user's own, else of what was called."""
        if isinstance(error, SyntaxError) and error.filename:
            return error.filename, error.lineno or 0
        theirs = self._frames_of_users(error)
        return theirs[-1] if theirs else getattr(self, "_shown_where", ("", 0))

    @staticmethod
    def _frames_of_users(error: BaseException) -> list[tuple[str, int]]:
        """File and line of the frames of an error that are neither the suite's nor a library's."""
        library = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
        frames = [(each.filename, each.lineno or 0) for each in traceback.extract_tb(error.__traceback__)]
        return [each for each in frames if not each[0].startswith((str(PACKAGE), "<", *library))]


def _closed_over(function: Any) -> dict[str, Any]:
    """Return the values that a function sees without being given them, by name."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    names = getattr(code, "co_freevars", ())
    found = {}
    for name, cell in zip(names, cells):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _objects_with_arrays(values: Any) -> list[str]:
    """Types of objects among these, a module of torch for one, that hold arrays which nobody copies."""
    if isinstance(values, (list, tuple, dict)):
        each_of = values.values() if isinstance(values, dict) else values
        return [name for each in each_of for name in _objects_with_arrays(each)]
    is_other = not arrays.is_array(values) and not inspect.isroutine(values)
    return [type(values).__name__] if is_other and _holds_arrays(values) else []


def _holds_arrays(value: Any) -> bool:
    left, seen = [value], set[int]()
    while left and len(seen) < MOST_LOOKED_AT:
        item = left.pop()
        if id(item) in seen or inspect.ismodule(item) or inspect.isclass(item):
            continue
        seen.add(id(item))
        if arrays.is_array(item):
            return True
        held = item if type(item) in (dict, list, tuple) else getattr(item, "__dict__", {})
        left += held.values() if isinstance(held, dict) else held
    return False


def _versions() -> dict[str, str]:
    return {
        name: str(getattr(sys.modules[name], "__version__", ""))
        for name in ("numpy", "torch", "triton", "scipy", "numba", "jax")
        if sys.modules.get(name) is not None
    }


def _words_of(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({'' if error.code is None else repr(error.code)})"
    if isinstance(error, MemoryError):
        return f"ran out of memory{f': {error}' if str(error) else ''}"
    first = (str(error).strip().splitlines() or [""])[0]
    return f"raised {type(error).__name__}{f': {first[:300]}' if first else ''}"


def _witnesses(error: BaseException | None) -> int:
    """How many cases have to fail so before the others are spared: SparedCases of runner/spared.py."""
    while error is not None:
        if isinstance(error, (ImportError, SyntaxError)):
            return 1
        if "compil" in f"{type(error).__module__}.{type(error).__name__}".lower():
            return 2
        error = error.__cause__
    return 0
