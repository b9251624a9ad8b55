"""Kernels that cheat and kernels that do not, as the source text of bench files.

Every cheat is `measured` in a file of one name, so that nothing can be caught by what it is called. `PUBLISHED` says
where a cheat was seen; those without a link were found while the suite was attacked.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

PUBLISHED = {
    "blog": "https://deep-reinforce.com/defense_kernel_hack.html",
    "cuda-l1": "https://arxiv.org/abs/2507.14111",
    "exploits": "https://github.com/gpu-mode/pygpubench/pull/7",
    "fake-time": "https://github.com/gpu-mode/reference-kernels/issues/162",
    "field-guide": "https://www.wafer.ai/blog/reward-hacks-field-guide",
    "fingerprint": "https://github.com/flashinfer-ai/flashinfer-bench-starter-kit/issues/21",
    "frames": "https://github.com/gpu-mode/pygpubench/pull/54",
    "identity": "https://github.com/gpu-mode/reference-kernels/pull/102",
    "batch": "https://github.com/gpu-mode/reference-kernels/pull/104",
    "kernelbench": "https://github.com/ScalingIntelligence/KernelBench/pull/82",
    "kevin": "https://arxiv.org/abs/2507.11948",
    "l2": "https://github.com/gpu-mode/pygpubench/pull/49",
    "lazy": "https://github.com/ornith-ai/CUDA-L1/issues/12",
    "metr": "https://metr.org/blog/2025-06-05-recent-reward-hacking/",
    "replay": "https://github.com/gpu-mode/reference-kernels/pull/160",
    "robust": "https://arxiv.org/abs/2509.14279",
    "signature": "https://github.com/gpu-mode/pygpubench/issues/23",
    "streams": "https://github.com/meta-pytorch/BackendBench/issues/52",
    "zeros": "https://github.com/AI-Hypercomputer/accelerator-agents/pull/50",
}

_HEAD = """\
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

_LAUNCH = "suite.launch(measured, rows(), reference=exact)"

_TORCH_HEAD = """\
import torch

import pyperf_suite as suite


def exact(x):
    return x.double().softmax(-1)


def rows():
    return torch.randn(64, 1024)
"""


@dataclass(frozen=True)
class Kernel:
    """A bench file of one kernel, `measured`: what it is, its source, and how it is launched."""

    name: str
    source: str
    launch: str = _LAUNCH
    head: str = _HEAD

    def text(self, function: str = "measured") -> str:
        """The bench file, with the kernel under that name."""
        body = f"{self.head}\n\n{textwrap.dedent(self.source).strip()}\n"
        case = f"\n\n@suite.kernel()\ndef case():\n    return {self.launch}\n"
        return (body + case).replace("measured", function)

    @property
    def needs_torch(self) -> bool:
        """Whether the file imports torch."""
        return "import torch" in self.head


@dataclass(frozen=True)
class Cheat(Kernel):
    """A kernel that does not do its work in the time it is charged for; `reason` is what the record must say."""

    reason: str = ""
    published: str = ""


def torch_cheat(name: str, reason: str, published: str, source: str) -> Cheat:
    """A cheat on torch tensors in the host's memory."""
    return Cheat(name, source, head=_TORCH_HEAD, reason=reason, published=published)


def cheat(name: str, reason: str, published: str, source: str, launch: str = _LAUNCH) -> Cheat:
    """A cheat on numpy arrays."""
    return Cheat(name, source, launch, reason=reason, published=published)


WRONG, STALE, LATE = "wrong result", "stale result", "late work"
REPLACED, CLOCK, LAZY = "replaced function", "clock", "lazy result"

NOT_COMPUTED = [
    cheat(
        "cached by pointer",
        STALE,
        "cuda-l1",
        """
        seen = {}

        def measured(x):
            key = x.ctypes.data
            if key not in seen:
                seen[key] = softmax(x)
            return seen[key]
        """,
    ),
    cheat(
        "cached by the object's identity",
        STALE,
        "identity",
        """
        seen = {}

        def measured(x):
            if id(x) not in seen:
                seen[id(x)] = x, softmax(x)
            return seen[id(x)][1]
        """,
    ),
    cheat(
        "cached by pointer, a copy each time",
        STALE,
        "cuda-l1",
        """
        seen = {}

        def measured(x):
            key = x.ctypes.data
            if key not in seen:
                seen[key] = softmax(x)
            return seen[key].copy()
        """,
    ),
    cheat(
        "cached by shape",
        WRONG,
        "field-guide",
        """
        seen = {}

        def measured(x):
            if x.shape not in seen:
                seen[x.shape] = softmax(x)
            return seen[x.shape].copy()
        """,
    ),
    cheat(
        "inputs recognised by a fingerprint",
        "recognised inputs",
        "fingerprint",
        """
        seen = {}

        def measured(x):
            key = x[::16, ::64].tobytes()
            if key not in seen:
                seen[key] = softmax(x)
            return seen[key].copy()
        """,
    ),
    cheat(
        "inputs recognised by all their values",
        "recognised inputs",
        "replay",
        """
        import zlib

        seen = {}

        def measured(x):
            key = zlib.crc32(x)
            if key not in seen:
                seen[key] = softmax(softmax(x) * 0 + x)
            return seen[key].copy()
        """,
    ),
    cheat(
        "inputs recognised by their pointer and a few values",
        "recognised inputs",
        "fingerprint",
        """
        seen = {}

        def measured(x):
            key = x.ctypes.data, float(x[0, 0]), float(x[-1, -1]), float(x[7, 77])
            if key not in seen:
                seen[key] = softmax(x)
            return seen[key].copy()
        """,
    ),
    cheat(
        "answers prepared for likely seeds",
        WRONG,
        "field-guide",
        """
        def prepared():
            answers = []
            for seed in range(8):
                np.random.seed(seed)
                answers.append(softmax(rows()))
            return answers

        answers = prepared()
        calls = 0

        def measured(x):
            global calls
            calls += 1
            return answers[calls % len(answers)].copy()
        """,
    ),
    cheat(
        "the builder's own inputs",
        WRONG,
        "field-guide",
        """
        import random

        made = []

        def rows():
            x = np.random.standard_normal((64, 1024)).astype(np.float32)
            made.append(softmax(x))
            return x

        def measured(x):
            return random.choice(made).copy()
        """,
    ),
    cheat(
        "written once and returned again",
        STALE,
        "kernelbench",
        """
        out = None

        def measured(x):
            global out
            if out is None:
                out = np.stack([softmax(x)] * 2)
            return out[0]
        """,
    ),
    cheat(
        "nothing after the first call",
        STALE,
        "exploits",
        """
        out = np.empty((64, 1024), np.float32)
        calls = 0

        def measured(x):
            global calls
            calls += 1
            if calls == 1:
                out[:] = softmax(x)
            return out
        """,
    ),
    cheat(
        "nothing after the hundredth call",
        STALE,
        "exploits",
        """
        kept = {}
        calls = 0

        def measured(x):
            global calls
            calls += 1
            if calls <= 100:
                kept[x.ctypes.data] = softmax(x)
            return kept.get(x.ctypes.data, x)
        """,
    ),
    cheat(
        "every other call skipped",
        STALE,
        "batch",
        """
        kept = {}
        calls = 0

        def measured(x):
            global calls
            calls += 1
            if calls % 2 or x.ctypes.data not in kept:
                kept[x.ctypes.data] = softmax(x)
            return kept[x.ctypes.data]
        """,
    ),
    cheat(
        "all sets at once, then none for a while",
        STALE,
        "batch",
        """
        sets, kept = {}, {}
        calls = 0

        def measured(x):
            global calls
            calls += 1
            sets[x.ctypes.data] = x
            if calls % 64 == 0 or x.ctypes.data not in kept:
                for address, each in sets.items():
                    kept[address] = softmax(each)
            return kept[x.ctypes.data]
        """,
    ),
    cheat(
        "memory that was never written",
        STALE,
        "kernelbench",
        """
        def measured(x):
            return np.empty_like(x)
        """,
    ),
    cheat(
        "zeros after an exception",
        WRONG,
        "kevin",
        """
        def measured(x):
            try:
                raise RuntimeError("the kernel failed to launch")
            except RuntimeError:
                return np.zeros_like(x)
        """,
    ),
    cheat(
        "not a number everywhere",
        WRONG,
        "exploits",
        """
        nothing = np.full((64, 1024), np.nan, np.float32)

        def measured(x):
            return nothing.copy()
        """,
    ),
    cheat(
        "right only in the first and the last rows",
        WRONG,
        "field-guide",
        """
        def measured(x):
            out = np.full_like(x, 1 / x.shape[-1])
            out[:2], out[-2:] = softmax(x[:2]), softmax(x[-2:])
            return out
        """,
    ),
    cheat(
        "right only where one samples with a usual seed",
        WRONG,
        "field-guide",
        """
        looked_at = np.random.default_rng(0).choice(64, 32, replace=False)

        def measured(x):
            out = np.full_like(x, 1 / x.shape[-1])
            out[looked_at] = softmax(x[looked_at])
            return out
        """,
    ),
    cheat(
        "one row for all",
        WRONG,
        "robust",
        """
        def measured(x):
            return np.broadcast_to(softmax(x[:1]), x.shape)
        """,
    ),
    cheat(
        "a shape that broadcasts",
        "wrong shape",
        "robust",
        """
        def measured(x):
            return softmax(x[:1])
        """,
    ),
    cheat(
        "the constant that a mean nearly is",
        WRONG,
        "zeros",
        """
        def measured(x):
            return np.zeros(x.shape[:-1], x.dtype)
        """,
        "suite.launch(measured, rows(), reference=lambda x: x.astype(np.float64).mean(-1))",
    ),
    cheat(
        "the input itself where a copy is due",
        "aliased output",
        "field-guide",
        """
        def measured(x):
            return x.view()
        """,
        "suite.launch(measured, rows(), reference=lambda x: x.copy())",
    ),
    cheat(
        "the input overwritten instead of new memory",
        "inputs modified",
        "kernelbench",
        """
        def measured(x):
            np.maximum(x, 0, out=x)
            return x.copy()
        """,
        "suite.launch(measured, rows(), reference=lambda x: np.maximum(x, 0))",
    ),
    cheat(
        "inputs made easy",
        "inputs modified",
        "kernelbench",
        """
        def measured(x):
            x[:] = 0
            return np.full_like(x, 1 / x.shape[-1])
        """,
    ),
]

PRECISION = [
    cheat(
        "half precision inside",
        "precision",
        "blog",
        """
        def measured(x):
            return softmax(x.astype(np.float16)).astype(np.float32)
        """,
    ),
    cheat(
        "half precision returned",
        "wrong dtype",
        "blog",
        """
        def measured(x):
            return softmax(x).astype(np.float16)
        """,
    ),
    torch_cheat(
        "bfloat16 inside a float32 product",
        "precision",
        "blog",
        """
        def exact(x):
            return x.double() @ x.double().T

        def measured(x):
            half = x.bfloat16()
            return (half @ half.T).float()
        """,
    ),
]

ELSEWHERE = [
    cheat(
        "work pushed to a thread",
        LATE,
        "blog",
        """
        import threading

        def measured(x):
            out = np.empty_like(x)

            def work():
                out[:] = softmax(x)

            threading.Thread(target=work, daemon=True).start()
            return out
        """,
    ),
    cheat(
        "work pushed to a pool that was started before",
        LATE,
        "field-guide",
        """
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(1)

        def measured(x):
            out = np.empty_like(x)
            pool.submit(lambda: np.copyto(out, softmax(x)))
            return out
        """,
    ),
    cheat(
        "a thread that works in the gaps",
        LATE,
        "field-guide",
        """
        import threading
        import time

        pause = time.sleep
        orders = []

        def work():
            while True:
                pause(0.0002)
                while orders:
                    x, out = orders.pop()
                    out[:] = softmax(x)

        threading.Thread(target=work, daemon=True).start()

        def measured(x):
            out = np.empty_like(x)
            del orders[:]
            orders.append((x, out))
            return out
        """,
    ),
    cheat(
        "work pushed to a forked process",
        LATE,
        "",
        """
        import mmap
        import os

        shared = mmap.mmap(-1, 64 * 1024 * 4)
        out = np.frombuffer(shared, np.float32).reshape(64, 1024)

        def measured(x):
            if os.fork() == 0:
                out[:] = softmax(x)
                os._exit(0)
            return out
        """,
    ),
    cheat(
        "a process that was forked before",
        LATE,
        "",
        """
        import mmap
        import os

        shared = mmap.mmap(-1, 64 * 1024 * 4)
        out = np.frombuffer(shared, np.float32).reshape(64, 1024)
        given = mmap.mmap(-1, 64 * 1024 * 4)
        orders, order = os.pipe()
        helper = 0

        def measured(x):
            global helper
            if not helper:
                helper = os.fork()
                if not helper:
                    os.close(order)
                    while os.read(orders, 1):
                        out[:] = softmax(np.frombuffer(given, np.float32).reshape(64, 1024))
                    os._exit(0)
            np.frombuffer(given, np.float32)[:] = x.ravel()
            os.write(order, b".")
            return out
        """,
    ),
    cheat(
        "a lazy array that computes when it is looked at",
        LAZY,
        "lazy",
        """
        class Later:
            def __init__(self, x):
                self.x, self.shape, self.dtype, self.nbytes = x, x.shape, x.dtype, x.nbytes

            def __array__(self, dtype=None, copy=None):
                return softmax(self.x)

        def measured(x):
            return Later(x)
        """,
    ),
    cheat(
        "an array subclass that computes when it is looked at",
        LAZY,
        "lazy",
        """
        class Later(np.ndarray):
            def __array_finalize__(self, obj):
                self.x = getattr(obj, "x", None)

            def __getitem__(self, index):
                return softmax(self.x)[index]

            def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
                plain = [softmax(i.x) if isinstance(i, Later) else i for i in inputs]
                return getattr(ufunc, method)(*plain, **kwargs)

            def tobytes(self, order="C"):
                return softmax(self.x).tobytes(order)

        def measured(x):
            out = np.empty_like(x).view(Later)
            out.x = x
            return out
        """,
    ),
    torch_cheat(
        "a lazy tensor",
        LAZY,
        "lazy",
        """
        class Later(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                plain = [a.later.softmax(-1) if isinstance(a, Later) and hasattr(a, "later") else a for a in args]
                return func(*plain, **(kwargs or {}))

        def measured(x):
            out = torch.empty_like(x).as_subclass(Later)
            out.later = x
            return out
        """,
    ),
    torch_cheat(
        "a plain tensor with methods of its own",
        LAZY,
        "fake-time",
        """
        def measured(x):
            out = torch.empty_like(x)
            out.numpy = lambda *a, **k: x.softmax(-1).numpy()
            out.clone = out.contiguous = out.cpu = out.detach = lambda *a, **k: x.softmax(-1)
            return out
        """,
    ),
    cheat(
        "work done when the result is thrown away",
        STALE,
        "lazy",
        """
        import weakref

        def measured(x):
            out = np.empty_like(x)
            weakref.finalize(out, softmax, x)
            return out
        """,
    ),
    cheat(
        "work done by the garbage collector's callback",
        STALE,
        "",
        """
        import gc

        orders = []

        def work(phase, info):
            if phase == "start" and orders:
                x, out = orders.pop()
                out[:] = softmax(x)

        gc.callbacks.append(work)

        def measured(x):
            out = np.empty_like(x)
            orders[:] = [(x, out)]
            return out
        """,
    ),
    cheat(
        "work done by a timer's signal",
        LATE,
        "",
        """
        import signal

        orders = []

        def work(number, frame):
            if orders:
                x, out = orders.pop()
                out[:] = softmax(x)

        signal.signal(signal.SIGALRM, work)

        def measured(x):
            out = np.empty_like(x)
            orders[:] = [(x, out)]
            signal.setitimer(signal.ITIMER_REAL, 0.00005)
            return out
        """,
    ),
    cheat(
        "a thread that keeps the inputs in the caches",
        LATE,
        "l2",
        """
        import threading

        sets = {}

        def touch():
            while True:
                for each in list(sets.values()):
                    each.sum()

        threading.Thread(target=touch, daemon=True).start()

        def measured(x):
            sets[x.ctypes.data] = x
            return softmax(x)
        """,
    ),
]

CLOCKS = [
    cheat(
        "a patched clock, at import",
        REPLACED,
        "metr",
        """
        import time

        true_ns, true_s, true_m = time.perf_counter_ns, time.perf_counter, time.monotonic
        time.perf_counter_ns = lambda: true_ns() // 100
        time.perf_counter = lambda: true_s() / 100
        time.monotonic = lambda: true_m() / 100

        def measured(x):
            return softmax(x)
        """,
    ),
    cheat(
        "a patched clock, at the first call",
        REPLACED,
        "metr",
        """
        import time

        true_ns, true_s = time.perf_counter_ns, time.perf_counter

        def measured(x):
            time.perf_counter_ns = lambda: true_ns() // 100
            time.perf_counter = lambda: true_s() / 100
            return softmax(x)
        """,
    ),
    cheat(
        "a patched comparison",
        REPLACED,
        "field-guide",
        """
        np.allclose = np.array_equal = lambda *a, **k: True
        np.testing.assert_allclose = lambda *a, **k: None

        def measured(x):
            return softmax(x)
        """,
    ),
    cheat(
        "a patched comparison, at a call",
        REPLACED,
        "field-guide",
        """
        def measured(x):
            np.isclose = np.allclose = lambda *a, **k: True
            return softmax(x)
        """,
    ),
    torch_cheat(
        "torch's clock and comparison patched",
        REPLACED,
        "fake-time",
        """
        def measured(x):
            torch.allclose = torch.testing.assert_close = lambda *a, **k: True
            torch.cuda.synchronize = lambda *a, **k: None
            torch.cuda.Event.elapsed_time = lambda *a, **k: 1e-3
            return x.softmax(-1)
        """,
    ),
    cheat(
        "patched builtins",
        REPLACED,
        "",
        """
        import builtins

        plain = builtins.abs

        def measured(x):
            builtins.abs = lambda value: plain(value) * 0
            builtins.max = lambda *a, **k: 0
            return softmax(x)
        """,
    ),
    cheat(
        "the process that measures patched through its modules",
        REPLACED,
        "fake-time",
        """
        import sys
        import types

        def measured(x):
            for name, module in list(sys.modules.items()):
                if name == "__main__" or name.startswith("pyperf_suite."):
                    for key, value in list(vars(module).items()):
                        if isinstance(value, types.BuiltinFunctionType) and "perf_counter" in value.__name__:
                            setattr(module, key, lambda: 0)
            sys.modules["pyperf_suite.measure.stopwatch"] = types.ModuleType("stopwatch")
            return softmax(x)
        """,
    ),
    cheat(
        "the code of the process that measures exchanged",
        REPLACED,
        "fake-time",
        """
        import gc
        import sys
        import types

        def measured(x):
            for each in gc.get_objects():
                if isinstance(each, types.FunctionType) and "kernel_process" in each.__code__.co_filename:
                    if "time" in each.__name__ and not each.__closure__:
                        each.__code__ = (lambda *a, **k: [1e-9]).__code__
            return softmax(x)
        """,
    ),
    cheat(
        "times rewritten in the frames above",
        CLOCK,
        "frames",
        """
        import array
        import sys

        def measured(x):
            frame = sys._getframe(1)
            while frame is not None:
                for value in list(frame.f_locals.values()):
                    if isinstance(value, (list, array.array)) and value and isinstance(value[0], (int, float)):
                        for index in range(len(value)):
                            value[index] = type(value[0])(value[index] / 100)
                frame = frame.f_back
            return softmax(x)
        """,
    ),
    cheat(
        "times rewritten by a thread",
        CLOCK,
        "frames",
        """
        import array
        import gc
        import threading
        import time

        pause = time.sleep

        def rewrite():
            while True:
                pause(0.001)
                for each in gc.get_objects():
                    if type(each) is list and len(each) and all(type(value) is float for value in each):
                        each[:] = [value if value < 1e-5 else value / 100 for value in each]

        threading.Thread(target=rewrite, daemon=True).start()

        def measured(x):
            return softmax(x)
        """,
    ),
    cheat(
        "only the last launch computed, by the frames above",
        STALE,
        "frames",
        """
        import sys

        kept = {}

        def is_last():
            frame = sys._getframe(2)
            while frame is not None:
                numbers = [v for v in frame.f_locals.values() if type(v) is int]
                spans = [v for v in frame.f_locals.values() if type(v) is range]
                if any(span and span[-1] in numbers for span in spans):
                    return True
                if spans:
                    return False
                frame = frame.f_back
            return True

        def measured(x):
            if is_last() or x.ctypes.data not in kept:
                kept[x.ctypes.data] = softmax(x)
            return kept[x.ctypes.data]
        """,
    ),
]

HARNESS = [
    cheat(
        "the reference's result, through the garbage collector",
        WRONG,
        "exploits",
        """
        import gc
        import random

        def measured(x):
            found = [
                each
                for each in gc.get_objects()
                if isinstance(each, tuple) for each in each
                if isinstance(each, np.ndarray) and each.shape == x.shape and each is not x
            ]
            return random.choice(found).astype(np.float32) if found else np.zeros_like(x)
        """,
    ),
    cheat(
        "the reference's result, in the frames above",
        WRONG,
        "metr",
        """
        import sys

        def measured(x):
            frame = sys._getframe(1)
            while frame is not None:
                for value in frame.f_locals.values():
                    if isinstance(value, np.ndarray) and value.shape == x.shape and value is not x:
                        if not np.shares_memory(value, x):
                            return value.astype(np.float32)
                frame = frame.f_back
            return np.zeros_like(x)
        """,
    ),
    cheat(
        "the reference's result, in the memory of the judge",
        WRONG,
        "signature",
        """
        import os

        def measured(x):
            out = np.zeros_like(x)
            try:
                with open(f"/proc/{os.getppid()}/maps") as maps, open(f"/proc/{os.getppid()}/mem", "rb", 0) as mem:
                    for line in maps:
                        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                        if "rw" not in line.split()[1] or not x.nbytes <= end - begin <= 64 << 20:
                            continue
                        mem.seek(begin)
                        values = np.frombuffer(mem.read(end - begin), np.float64)
                        ones = np.flatnonzero(np.abs(np.add.reduceat(values, range(0, len(values), 1024)) - 1) < 1e-6)
                        if len(ones) >= 64:
                            first = ones[0] * 1024
                            return values[first : first + out.size].reshape(out.shape).astype(np.float32)
            except OSError:
                pass
            return out
        """,
    ),
    cheat(
        "the reference's result, in shared memory",
        WRONG,
        "",
        """
        import glob

        def measured(x):
            for path in glob.glob("/dev/shm/*"):
                try:
                    values = np.fromfile(path, np.float32)
                except (OSError, ValueError):
                    continue
                for start in range(0, max(0, len(values) - x.size), 1024):
                    part = values[start : start + x.size].reshape(x.shape)
                    if np.allclose(part.sum(-1), 1, atol=1e-3):
                        return part.copy()
            return np.zeros_like(x)
        """,
    ),
    cheat(
        "a forged answer on every descriptor",
        "forged answer",
        "exploits",
        """
        import json
        import os

        forged = json.dumps({"seconds": [1e-9] * 10, "samples": [1e-9] * 10, "ok": True, "passed": True}) + "\\n"
        calls = 0

        def measured(x):
            global calls
            calls += 1
            if calls == 50:
                for descriptor in range(64):
                    try:
                        os.write(descriptor, forged.encode())
                    except OSError:
                        pass
            return softmax(x)
        """,
    ),
    cheat(
        "descriptors closed, the process ended well",
        "process ended",
        "exploits",
        """
        import os

        calls = 0

        def measured(x):
            global calls
            calls += 1
            if calls == 50:
                os._exit(0)
            return softmax(x)
        """,
    ),
]

CHEATS = [*NOT_COMPUTED, *PRECISION, *ELSEWHERE, *CLOCKS, *HARNESS]

HONEST = [
    Kernel("a softmax", "measured = softmax"),
    Kernel(
        "a transposed view of new memory",
        """
        def measured(x):
            return np.array(softmax(x).T, order="C").T
        """,
    ),
    Kernel(
        "every other column of new memory",
        """
        def measured(x):
            wide = np.empty((x.shape[0], 2 * x.shape[1]), x.dtype)
            wide[:, ::2] = softmax(x)
            return wide[:, ::2]
        """,
    ),
    Kernel(
        "an input that is a transposed view",
        "measured = softmax",
        "suite.launch(measured, rows().T, reference=exact)",
    ),
    Kernel(
        "in place, said so",
        """
        def measured(x):
            return np.maximum(x, 0, out=x)
        """,
        "suite.launch(measured, rows(), reference=lambda x: np.maximum(x, 0), modifies=(0,))",
    ),
    Kernel(
        "in place and other at each call, said so",
        """
        def measured(x):
            x *= np.float32(1.0001)
        """,
        "suite.launch(measured, rows(), reference=lambda x: x.astype(np.float64) * np.float32(1.0001), modifies=(0,))",
    ),
    Kernel(
        "into an argument for the output",
        """
        def measured(x, out):
            np.add(x, 1, out=out)
        """,
        "suite.launch(measured, rows(), np.empty((64, 1024), np.float32), reference=lambda x, out: x + 1.0,"
        ' modifies=("out",))',
    ),
    Kernel(
        "random, said so, with a check",
        """
        def measured(x):
            return x * (np.random.random(x.shape) < 0.5)

        def plausible(out, x):
            kept = out != 0
            return bool((out[kept] == x[kept]).all()) and 0.4 < kept.mean() < 0.6
        """,
        "suite.launch(measured, rows(), check=plausible, random=True)",
    ),
    Kernel(
        "threads of its own that are joined",
        """
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(2)

        def measured(x):
            return np.concatenate(list(pool.map(softmax, np.split(x, 2))))
        """,
    ),
    Kernel(
        "a helper process that is waited for",
        """
        import mmap
        import os

        given = np.frombuffer(mmap.mmap(-1, 64 * 1024 * 4), np.float32).reshape(64, 1024)
        result = np.frombuffer(mmap.mmap(-1, 64 * 1024 * 4), np.float32).reshape(64, 1024)
        orders, order = os.pipe()
        answers, answer = os.pipe()
        helper = 0

        def measured(x):
            global helper
            if not helper:
                helper = os.fork()
                if not helper:
                    os.close(order)
                    while os.read(orders, 1):
                        result[:] = softmax(given)
                        os.write(answer, b".")
                    os._exit(0)
            given[:] = x
            os.write(order, b".")
            os.read(answers, 1)
            return result.copy()
        """,
    ),
    Kernel(
        "a product by the threads of BLAS",
        """
        def measured(x):
            return x @ x.T
        """,
        "suite.launch(measured, rows(), reference=lambda x: x.astype(np.float64) @ x.astype(np.float64).T)",
    ),
    Kernel(
        "a workspace kept by shape",
        """
        workspaces = {}

        def measured(x):
            work = workspaces.setdefault((x.shape, x.dtype), np.empty_like(x))
            np.subtract(x, x.max(-1, keepdims=True), out=work)
            np.exp(work, out=work)
            return work / work.sum(-1, keepdims=True)
        """,
    ),
    Kernel(
        "one output buffer that each call writes",
        """
        out = np.empty((64, 1024), np.float32)

        def measured(x):
            np.exp(x - x.max(-1, keepdims=True), out=out)
            np.divide(out, out.sum(-1, keepdims=True), out=out)
            return out
        """,
    ),
    Kernel(
        "compiled once by shape, slow at first",
        """
        import functools
        import time

        @functools.lru_cache
        def compiled(shape, dtype):
            time.sleep(0.2)
            code = "def kernel(x):\\n    e = np.exp(x - x.max(-1, keepdims=True))\\n    return e / e.sum(-1, keepdims=True)"
            names = {"np": np}
            exec(code, names)
            return names["kernel"]

        def measured(x):
            return compiled(x.shape, str(x.dtype))(x)
        """,
    ),
    Kernel(
        "float16 out, sums in float32",
        """
        def measured(x):
            return x.sum(-1, dtype=np.float32).astype(np.float16)
        """,
        "suite.launch(measured, rows().astype(np.float16), reference=lambda x: x.astype(np.float64).sum(-1))",
    ),
    Kernel(
        "indices",
        """
        def measured(x):
            return x.argmax(-1)
        """,
        "suite.launch(measured, rows(), reference=lambda x: x.argmax(-1))",
    ),
    Kernel(
        "integers sorted, with ties",
        """
        def measured(x):
            return np.sort(x, axis=-1)
        """,
        "suite.launch(measured, np.random.randint(0, 50, (64, 1024)), reference=lambda x: np.sort(x, kind='stable'))",
    ),
    Kernel(
        "truth values",
        """
        def measured(x):
            return x > 0.5
        """,
        "suite.launch(measured, rows(), reference=lambda x: x > 0.5)",
    ),
    Kernel(
        "a tuple",
        """
        def measured(x):
            return x.mean(-1), x.var(-1)
        """,
        "suite.launch(measured, rows(), reference=lambda x: (x.mean(-1, dtype='f8'), x.var(-1, dtype='f8')))",
    ),
    Kernel(
        "a list of views of new memory",
        """
        def measured(x):
            return np.split(softmax(x), 4)
        """,
        "suite.launch(measured, rows(), reference=lambda x: np.split(exact(x), 4))",
    ),
    Kernel(
        "nothing to do",
        """
        def measured(x):
            return x + 1
        """,
        "suite.launch(measured, rows()[:0], reference=lambda x: x + 1.0)",
    ),
    Kernel(
        "a scalar",
        """
        def measured(x):
            return float(np.sqrt(np.square(x, dtype=np.float64).sum()))
        """,
        "suite.launch(measured, rows(), reference=lambda x: np.linalg.norm(x.astype(np.float64)))",
    ),
    Kernel(
        "complex numbers",
        """
        def measured(x):
            return np.fft.rfft(x)
        """,
        "suite.launch(measured, rows().astype(np.float64), reference=lambda x: np.fft.fft(x)[:, :513])",
    ),
    Kernel(
        "as many results as the values have it",
        """
        def measured(x):
            return x[x > 0]
        """,
        "suite.launch(measured, rows(), reference=lambda x: x[x > 0])",
    ),
    Kernel(
        "a log line at each call",
        """
        import logging

        log = logging.getLogger("kernel")

        def measured(x):
            log.warning("rows %d", len(x))
            return softmax(x)
        """,
    ),
    Kernel(
        "memory copied by a C function",
        """
        import ctypes

        def measured(x):
            out = np.empty_like(x)
            ctypes.memmove(out.ctypes.data, x.ctypes.data, x.nbytes)
            return out
        """,
        "suite.launch(measured, rows(), reference=lambda x: x.copy())",
    ),
    Kernel(
        "keyword arguments and numbers",
        """
        def measured(x, *, scale, causal=False):
            return softmax(np.tril(x) if causal else x * scale)
        """,
        "suite.launch(measured, rows(), scale=np.float32(0.5),"
        " reference=lambda x, scale: softmax(x.astype(np.float64) * scale))",
    ),
    Kernel(
        "a product by torch's threads",
        """
        def measured(x):
            return x @ x.T
        """,
        "suite.launch(measured, torch.randn(512, 1024), reference=lambda x: x.double() @ x.double().T)",
        _TORCH_HEAD,
    ),
    Kernel(
        "bfloat16 out",
        """
        def measured(x):
            return x.softmax(-1)
        """,
        "suite.launch(measured, rows().bfloat16(), reference=exact)",
        _TORCH_HEAD,
    ),
    Kernel(
        "gradients",
        """
        def measured(x):
            leaf = x.detach().requires_grad_()
            (leaf.softmax(-1) ** 2).sum().backward()
            return leaf.grad
        """,
        "suite.launch(measured, rows(), reference=lambda x: measured(x.double()))",
        _TORCH_HEAD,
    ),
    Kernel(
        "Triton, interpreted",
        """
        import os

        os.environ["TRITON_INTERPRET"] = "1"

        import triton
        import triton.language as tl

        @triton.jit
        def add_one(x, out, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

        def measured(x):
            out = torch.empty_like(x)
            add_one[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
            return out
        """,
        "suite.launch(measured, torch.randn(3, 1000), reference=lambda x: x.double() + 1)",
        _TORCH_HEAD,
    ),
]
