"""Declare kernels in a file: `kernel` names the axes, `launch` gives the function and the inputs to measure.

    import pyperf_suite as suite

    @suite.kernel(n=(1024, 4096, 16384), dtype=("bfloat16", "float32"))
    def softmax(n, dtype):
        x = suite.randn(4096, n, dtype=dtype)
        return suite.launch(my_softmax, x, reference=lambda x: x.double().softmax(-1), bytes=2 * x.nbytes)

Nothing but the standard library is imported here, and nothing newer than Python 3.9 is used: a kernel is measured by
the interpreter that its package was built for, which need not be the suite's.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import itertools
import os
import random as _random
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from pyperf_suite.user_kernels.arrays import LAYOUTS

Scalar = Union[bool, int, float, str]
Axes = Mapping[str, Mapping[str, "tuple[Scalar, ...]"]]
Size = Union[int, Sequence[int]]
Grid = Union[Size, Callable[..., Size]]

PROFILES = ("quick", "standard", "full")
USUAL = "normal"
CONSTANT_ROWS = "constant rows"
INPUTS = ("sparse", "outliers", "offset", "large", "small", CONSTANT_ROWS)
"""Kinds of inputs that a kernel is tried on besides the usual ones, as `randn` and `rand` draw them (`_as_drawn`)."""


class DeclaredKernel:
    """A function that makes the inputs of one case, with the axes of its cases. `softmax(n=64, dtype="float32")`.

    `axes` are the values of each by profile; a profile that is not there has those of the one before it. Or the
    function takes `parameters`, whose values a probe's sweep chooses.
    """

    def __init__(self, builder: Callable[..., Launch], axes: Axes, parameters: type | None = None) -> None:
        self.builder, self.axes, self.parameters = builder, dict(axes), parameters
        self.name = builder.__name__
        self.file, self.line = _where(builder)
        self.doc = (inspect.getdoc(builder) or "").strip().split("\n\n")[0].replace("\n", " ")

    def __call__(self, *args: Any, **axes: Any) -> Launch:
        """Return the launch of the case with these values of its axes. Raises TypeError where none is returned."""
        _outputs.clear()
        launched: Any = self.builder(*args, **axes)
        if not isinstance(launched, Launch):
            found = "nothing" if launched is None else f"an object of {type(launched).__name__}"
            raise TypeError(f"{self.name} returned {found}: return suite.launch(function, inputs...)")
        return launched

    def cases(self) -> Iterator[dict[str, Scalar]]:
        """Every combination of the axes' values in the profile quick."""
        for values in itertools.product(*(each["quick"] for each in self.axes.values())):
            yield dict(zip(self.axes, values))


def kernel(parameters: type | None = None, /, **axes: Any) -> Callable[[Callable[..., Launch]], DeclaredKernel]:
    """Declare a kernel with a case for each combination: `@suite.kernel(n=(1024, 4096), dtype="float32")`.

    An axis holds numbers, words or booleans, one or a sequence of them, and is an argument of the function. Profiles
    may have values of their own: `n=dict(quick=(1024,), standard=(1024, 4096))`, and full then has those of standard.
    The function makes the inputs of a case and returns `launch(...)`. It is run many times, in several processes, under
    secret seeds of `random`, numpy, torch and `randn`.

    Kernels of the suite's own have a dataclass of `parameters` instead of axes, whose fields carry their limits, and a
    probe that sweeps it.

    Raises TypeError for an axis that is no argument of the function, and for a value that is not one of these.
    """
    if parameters is not None and (axes or not isinstance(parameters, type)):
        raise TypeError("suite.kernel takes axes by name: @suite.kernel(n=(1024, 4096)), or @suite.kernel() for none")
    profiled_axes = {name: _by_profile(name, values) for name, values in axes.items()}
    if "implementation" in profiled_axes:
        raise TypeError("implementation is the suite's own axis: give launch several, {'name': function, ...}")

    def decorate(builder: Callable[..., Launch]) -> DeclaredKernel:
        if parameters is not None:
            return DeclaredKernel(builder, {}, parameters)
        arguments = inspect.signature(builder).parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in arguments.values())
        for name in profiled_axes:
            if name not in arguments and not takes_all:
                there = ", ".join(arguments) or "none"
                raise TypeError(f"{builder.__name__} has no argument for the axis {name}: its arguments are {there}")
        for name, each in arguments.items():
            if (
                name not in profiled_axes
                and each.default is each.empty
                and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            ):
                raise TypeError(f"the argument {name} of {builder.__name__} has neither an axis nor a default")
        return DeclaredKernel(builder, profiled_axes)

    return decorate


@dataclass(frozen=True)
class Launch:
    """Arguments of `launch`: the implementations by name, their arguments, and a test of the result.

    Arrays by `empty` are output buffers; their previous contents are ignored.
    """

    functions: Mapping[str, Callable[..., Any]]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    reference: Callable[..., Any] | None
    check: Callable[..., Any] | None
    bytes: int
    flop: int
    modifies: tuple[int | str, ...]
    random: bool
    tolerance: float | None
    baseline: str
    inputs: tuple[str, ...]
    outputs: tuple[Any, ...]


def launch(
    function: Callable[..., Any] | Mapping[str, Any],
    *args: Any,
    reference: Callable[..., Any] | None = None,
    check: Callable[..., Any] | None = None,
    bytes: int | None = None,  # noqa: A002
    flop: int | None = None,
    modifies: int | str | Sequence[int | str] = (),
    random: bool = False,
    tolerance: float | None = None,
    baseline: str = "",
    inputs: Sequence[str] = INPUTS,
    **kwargs: Any,
) -> Launch:
    """Declare a measurement: `function(*args, **kwargs)`, or each function of a dict of implementations by name.

    Args: function: a callable, or {"name": callable, ...}: the implementations that are compared. *args: its arguments.
    Arrays, and numbers, text and containers of them, are made anew for each check: a varying value has to be an
    argument, not a variable that the function closes over. **kwargs: its keyword arguments. reference:
    `reference(*args, **kwargs)` is the right result, best in float64; never timed. Without one the result is compared
    with that of the baseline, or of the same function in another process. check: `check(result, *args, **kwargs)`
    decides instead: False, text, or an AssertionError says what is wrong. bytes: what one launch at least reads and
    writes; shown as GB/s. flop: what one launch at least computes; shown as TFLOP/s. modifies: positions or names of
    the arguments that the function writes. They are given back their values before each launch, untimed. What
    `suite.empty` made needs no mention. random: results differ from call to call; `check` has to decide. tolerance: the
    relative error that is allowed; by default what rounding to the result's dtype can do to it. baseline: the
    implementation that others are compared with; by default the last. inputs: the kinds of inputs, besides usual ones,
    that are tried before timing: by default all that `randn` and `rand` draw (`suite.INPUTS`). Leave out what the
    kernel does not take, as in `inputs=("sparse", "offset")`, or name the views that it does take:
    `inputs=(*suite.INPUTS, "strided", "unaligned")`.

    Raises TypeError or ValueError for what cannot be meant.
    """
    functions = dict(function) if isinstance(function, Mapping) else {_name_of(function): function}
    if not functions:
        raise ValueError("launch was given no implementation: {'name': function, ...}")
    for name, each in functions.items():
        is_ours = _describe and hasattr(each, "prepare")
        if not isinstance(name, str) or not name or not (callable(each) or is_ours):
            raise TypeError(f"launch takes a function, or functions by name, not {name!r}: {each!r:.60}")
    if baseline and baseline not in functions:
        raise ValueError(f"baseline={baseline!r} is none of the implementations: {', '.join(functions)}")
    if random and check is None:
        raise ValueError("random=True takes check=: results that differ from call to call have no one reference")
    named = (modifies,) if isinstance(modifies, (int, str)) else tuple(modifies)
    for at in named:
        if not (0 <= at < len(args) if isinstance(at, int) else at in kwargs):
            raise ValueError(f"modifies names {at!r}, which is no argument: name a position, or an argument by keyword")
    if tolerance is not None and not 0 <= tolerance < 1:
        raise ValueError(f"tolerance={tolerance!r} is no relative error: it lies between 0 and 1")
    unknown = [each for each in inputs if each not in (*INPUTS, *LAYOUTS)]
    if isinstance(inputs, str) or unknown:
        raise ValueError(
            f"inputs={inputs!r} names none of the kinds of inputs, which are {', '.join((*INPUTS, *LAYOUTS))}"
        )
    for name, count in (("bytes", bytes), ("flop", flop)):
        if count is not None and not 0 <= count < 1e300:
            raise ValueError(f"{name}={count!r} is no amount")
    return Launch(
        functions, args, kwargs, reference, check, int(bytes or 0), int(flop or 0), named, random, tolerance,
        baseline or list(functions)[-1], tuple(inputs), tuple(_outputs),
    )  # fmt: skip


# Device, kind and seed of the arrays: set by the process that runs the function (user_file.py).
_device = "cpu"
_library = ""
_seed: int | None = None
_numpy_generator: Any = None
_gpu: Callable[[], Any] | None = None  # the device of workloads/backends.py, where one is measured
_outputs: builtins.list[Any] = []  # what `empty` made since a kernel's function was called
_inputs = USUAL  # the kind of inputs that are drawn
_drawn = 0  # how many arrays were drawn of it
_mask: Any = None  # and which values of the first array are none, where they are sparse
_describe: Callable[[bool, tuple[int, ...], str], Any] | None = None  # makes what stands for an array of that shape


@contextlib.contextmanager
def described_by(describe: Callable[[bool, tuple[int, ...], str], Any]) -> Iterator[None]:
    """Inside, `randn` and `empty` return `describe(is_input, shape, dtype)`: memory is filled where it is needed."""
    global _describe
    before, _describe = _describe, describe
    try:
        yield
    finally:
        _describe = before


def randn(*shape: Any, dtype: Any = "float32", device: str | None = None) -> Any:
    """Standard normal values: a torch tensor where your file imports torch, else a numpy array.

    `device` is the one under measurement by default; numpy arrays are always the host's. Raises ValueError for a dtype
    that numpy lacks where there is no torch.
    """
    if _describe is not None:
        return _describe(True, _shape(shape), dtype)
    return _drawn_floats("randn", "standard_normal", shape, dtype, device or _device)


def rand(*shape: Any, dtype: Any = "float32", device: str | None = None) -> Any:
    """Values uniform in [0, 1); otherwise as `randn`."""
    return _drawn_floats("rand", "random", shape, dtype, device or _device)


def _drawn_floats(of_torch: str, of_numpy: str, shape: tuple[Any, ...], dtype: Any, device: str) -> Any:
    """Values of the kind that is drawn, by the function of that name of torch, or of numpy's generators."""
    is_bounded = of_numpy == "random"
    if _uses_torch(dtype):
        drawn = getattr(_torch(device), of_torch)(_shape(shape), device=device)
        return _as_drawn(drawn, _word(dtype), is_bounded).to(_torch_dtype(dtype))
    drawn_type = "float64" if _word(dtype) == "float64" else "float32"
    drawn = getattr(_generator(), of_numpy)(_shape(shape), dtype=drawn_type)
    return _as_drawn(drawn, _word(dtype), is_bounded).astype(dtype, copy=False)


def draw_inputs(kind: str) -> None:
    """From now on, arrays are drawn of that kind."""
    global _inputs, _drawn, _mask
    _inputs, _drawn, _mask = kind, 0, None


def _as_drawn(values: Any, dtype: str, is_bounded: bool) -> Any:
    """Values of the kind that is drawn, made of usual ones; `is_bounded` where they have to stay in [0, 1).

    sparse         about eight values along the longest dimension, 100 times as large, else zeros of either sign: in the
                   first array, and at the same places in others of its shape
    outliers       one value of 1,000 is 100 times as large
    offset         3 more
    large, small   1,000 times as large, a thousandth
    constant rows  one value along the last dimension, which is zero in one of eight

    float16, which cannot hold such squares, gets outliers and scales of 8, types of 8 bits get none.
    """
    global _drawn, _mask
    kind, count = _inputs, values.numel() if hasattr(values, "numel") else values.size
    if kind == USUAL or not count:
        return values
    spread = 1.0 if dtype.startswith("float8") else 8.0 if dtype == "float16" else 1000.0
    if kind == "sparse" and (_mask is None or _mask.shape == tuple(values.shape)):
        if _mask is None:
            _mask = _draw_mask(values, min(0.5, 8.0 / max(values.shape, default=1)))
        values = values * _as_values(_mask, values) * (1.0 if is_bounded else min(spread, 100.0))
    elif kind == CONSTANT_ROWS:
        if len(values.shape):
            filled = _as_values(_draw_mask(values[..., :1], 7 / 8), values)
            values = filled * values[..., :1] + 0 * values
    elif kind == "small":
        values = values / spread
    elif kind == "offset" and not is_bounded:
        values = values + 3.0
    elif kind == "large" and not is_bounded:
        values = values * spread
    elif kind == "outliers" and not is_bounded:
        places = _as_values(_draw_mask(values, max(1e-3, 1.0 / count)), values)
        values = values * (1.0 + (min(spread, 100.0) - 1.0) * places)
    else:
        return values
    _drawn += 1
    return values


def _draw_mask(values: Any, chance: float) -> Any:
    """Draw places where values are kept or changed, each with that chance."""
    return _generator().random(tuple(values.shape), dtype="float32") < chance


def _as_values(mask: Any, values: Any) -> Any:
    """Ones and zeros of the values' own kind."""
    if not hasattr(values, "numel"):
        return mask.astype(values.dtype)
    return _torch().from_numpy(mask).to(device=values.device, dtype=values.dtype)


def randint(low: int, high: int, *shape: Any, dtype: Any = "int64", device: str | None = None) -> Any:
    """Whole numbers from `low` up to but not including `high`; otherwise as `randn`."""
    if _uses_torch(dtype):
        torch = _torch(device or _device)
        return torch.randint(low, high, _shape(shape), device=device or _device).to(_torch_dtype(dtype))
    return _generator().integers(low, high, _shape(shape)).astype(dtype)


def zeros(*shape: Any, dtype: Any = "float32", device: str | None = None) -> Any:
    """Zeros; otherwise as `randn`."""
    if _uses_torch(dtype):
        torch = _torch(device or _device)
        return torch.zeros(_shape(shape), dtype=_torch_dtype(dtype), device=device or _device)
    import numpy as np

    return np.zeros(_shape(shape), dtype=dtype)


def empty(*shape: Any, dtype: Any = "float32", device: str | None = None) -> Any:
    """Room for a result that the kernel writes into an argument; otherwise as `randn`. It is poisoned before checks."""
    if _describe is not None:
        return _describe(False, _shape(shape), dtype)
    made = zeros(*shape, dtype=dtype, device=device)
    _outputs.append(made)
    return made


class CudaKernel:
    """A CUDA kernel from source text, compiled by NVRTC at its first launch; call it with the kernel's arguments.

    `name` is that of an `extern "C" __global__` function. `grid` is in blocks, or a function of the arguments that says
    how many; `block` is in threads. Arguments are torch tensors on the GPU, which are passed as pointers, numbers, and
    numpy scalars where the type matters. A launch is queued on torch's current stream.

        add = suite.cuda(SOURCE, "add", grid=lambda out, x, y, n: -(-n // 256), block=256)
        suite.launch(add, suite.empty(n), suite.randn(n), suite.randn(n), n, reference=lambda out, x, y, n: x + y)
    """

    def __init__(
        self,
        source: str,
        name: str,
        grid: Grid,
        block: Size,
        shared_bytes: int = 0,
        options: Sequence[str] = ("--std=c++17",),
    ) -> None:
        self.source, self.__name__, self.grid, self.block = source, name, grid, block
        self.shared_bytes, self.options = shared_bytes, tuple(options)
        caller = sys._getframe(1)
        self.file, self.line = caller.f_code.co_filename, caller.f_lineno
        self._loaded: Any = None
        self._launches: dict[Any, Any] = {}

    def compile(self, architecture: str) -> builtins.bytes:
        """The binary for an architecture such as sm_90; no GPU is needed. Raises what NVRTC has to say."""
        from pyperf_suite.kernels.nvrtc import compile_cubin

        return compile_cubin(f"{self.__name__}.cu", self.source, {}, architecture, self.options).cubin

    def __call__(self, *arguments: Any) -> None:
        """Queue one launch. Raises TypeError for an argument that no kernel takes."""
        torch = _torch(_device)
        key = tuple(each.data_ptr() if hasattr(each, "data_ptr") else each for each in arguments)
        if key not in self._launches:
            self._launches[key] = self._prepared(arguments)
        self._launches[key].run(torch.cuda.current_stream().cuda_stream)

    def _prepared(self, arguments: Sequence[Any]) -> Any:
        """The launch with these arguments; made once for each set of them, outside of what is timed."""
        if _gpu is None:
            raise TypeError(f"{self.__name__} is a CUDA kernel, which takes a GPU: measure it with --device cuda")
        gpu = _gpu()
        if self._loaded is None:
            cubin = gpu.compile(f"{self.__name__}.cu", self.source, {}, self.options)
            self._loaded = gpu.kernel(cubin, self.__name__)
        sizes = list(self._loaded.parameter_bytes) or [0] * len(arguments)
        if len(sizes) != len(arguments):
            raise TypeError(f"{self.__name__} takes {len(sizes)} arguments, not {len(arguments)}")
        passed = [_passed(each, size) for each, size in zip(arguments, sizes)]
        grid = self.grid(*arguments) if callable(self.grid) else self.grid
        shape = {"dynamic_shared_bytes": self.shared_bytes}
        return gpu.native.Launch(self._loaded, _three(grid), _three(self.block), passed, **shape)


cuda = CudaKernel


def _passed(argument: Any, size: int) -> Any:
    """An argument as a kernel's parameter of that many bytes (0: not known)."""
    import numpy as np

    if hasattr(argument, "data_ptr"):
        if not argument.is_cuda:
            raise TypeError("a tensor of the host was given to a CUDA kernel: make it with suite.randn, or on the GPU")
        return np.uint64(argument.data_ptr())
    if isinstance(argument, bool):
        return np.bool_(argument)
    if isinstance(argument, int):
        return {8: np.int64, 2: np.int16, 1: np.int8}.get(size, np.int32)(argument)
    if isinstance(argument, float):
        return {8: np.float64, 2: np.float16}.get(size, np.float32)(argument)
    if isinstance(argument, np.generic):
        return argument
    raise TypeError(f"a {type(argument).__name__} cannot be passed to a CUDA kernel: pass tensors and numbers")


def _three(size: Any) -> tuple[int, int, int]:
    values = (size,) if isinstance(size, int) else tuple(size)
    return (*values, *(1,) * (3 - len(values)))


def _by_profile(name: str, values: Any) -> dict[str, tuple[Scalar, ...]]:
    by_profile = values if isinstance(values, Mapping) else {"quick": values}
    if "quick" not in by_profile or not set(by_profile) <= set(PROFILES):
        raise TypeError(
            f"the axis {name} has values for {', '.join(map(str, by_profile)) or 'no profile'}: name "
            f"{', '.join(PROFILES)}, of which quick has to be there"
        )
    return {profile: _values(name, each) for profile, each in by_profile.items()}


def _values(name: str, values: Any) -> tuple[Scalar, ...]:
    choices = (values,) if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values)
    if not choices:
        raise TypeError(f"the axis {name} holds no value")
    for value in choices:
        if not isinstance(value, (bool, int, float, str)):
            raise TypeError(
                f"the axis {name} holds {value!r:.60}: an axis holds numbers and words, as in dtype='float32'"
            )
    return choices


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", "") or getattr(getattr(function, "func", None), "__name__", "")
    name = name or getattr(getattr(function, "fn", None), "__name__", "") or type(function).__name__
    return "function" if name == "<lambda>" else name


def _where(function: Any) -> tuple[str, int]:
    """File and line of a function's definition, through decorators; ("", 0) for one that is not Python's."""
    for _ in range(8):
        if isinstance(function, CudaKernel):
            return function.file, function.line
        code = getattr(function, "__code__", None)
        if code is not None:
            return code.co_filename, code.co_firstlineno
        inner = next(filter(None, (getattr(function, name, None) for name in ("__wrapped__", "fn", "func"))), None)
        if inner is None:
            return "", 0
        function = inner
    return "", 0


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else tuple(shape)


def _uses_torch(dtype: Any) -> bool:
    is_torch = _library == "torch" if _library else "torch" in sys.modules
    return is_torch or _word(dtype).startswith(("bfloat", "float8"))


def _word(dtype: Any) -> str:
    return dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]


def _torch(device: str = "cpu") -> Any:
    """torch, which can use that device. Raises Unsupported where it cannot, ValueError where torch is absent."""
    try:
        import torch
    except ModuleNotFoundError:
        raise ValueError("bfloat16, float8 and GPUs take torch, which is not installed") from None
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        from pyperf_suite.errors import Unsupported

        raise Unsupported(f"This torch ({torch.__version__}) cannot use the GPU.")
    return torch


def _torch_dtype(dtype: Any) -> Any:
    return getattr(_torch(), _word(dtype))


def _generator() -> Any:
    import numpy as np

    global _numpy_generator
    if _numpy_generator is None:
        _numpy_generator = np.random.default_rng(_seed)
    return _numpy_generator


# A mark of `watch_step`: when, by the machine's monotonic clock, and how many tokens.
MARK_FORMAT = "dd"
# The folder for the marks of a watched job; each process writes RANK-PID.steps there.
MARKS_VARIABLE = "PYPERF_WATCH"
_marks: Union[int, None] = None


def watch_step(tokens: float = 0.0) -> None:
    """Mark the end of a training step of `tokens` tokens on this rank, for `pyperf-suite watch`.

    Does next to nothing where no one watches, and never raises.
    """
    global _marks
    try:
        if _marks is None:
            folder = os.environ.get(MARKS_VARIABLE)
            rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
            _marks = -1
            if folder and rank.isdigit():
                path = f"{folder}/{rank}-{os.getpid()}.steps"
                _marks = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if _marks >= 0:
            os.write(_marks, struct.pack(MARK_FORMAT, time.monotonic(), tokens))
    except OSError:  # a full disk is no reason to end a training
        _marks = -1


def seed_everything(seed: int) -> None:
    """Seed `random`, numpy and torch, those that are there, and what this module draws from."""
    global _seed, _numpy_generator
    _seed, _numpy_generator = seed, None
    _random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    if torch is not None:
        torch.random.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


def __getattr__(name: str) -> Any:
    """A function that another part adds to the package's names. Raises AttributeError where that part is not here."""
    from pyperf_suite.extensions import extensions, load

    if name in extensions("functions"):
        return load("functions", name)
    raise AttributeError(f"pyperf_suite has no {name!r} here: a part of it that other installations have may bring it.")
