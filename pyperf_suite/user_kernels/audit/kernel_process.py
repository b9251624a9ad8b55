"""The process in which a user's code runs apart from its judge, and the only one: started and asked by the judge.

It has one of two parts. As the *kernel process* it runs the function that is measured. As the *reference process* it
makes inputs and computes references, and never runs what is measured but as its own reference. Run as a script by any
interpreter since Python 3.9, which need not have the suite installed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # A script's folder comes first on the path: its modules must not be found in the place of others.
    del sys.path[0]

import importlib.util
import os
import signal
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2]
# Requests to launch, of which a kernel may look at frames and objects that are not its own.
LOOKS_ALLOWED = 2


class SuiteFinder:
    """Finds `pyperf_suite`, and nothing else, where this file lies: first of all, and in any interpreter."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        folder = {"pyperf_suite": PACKAGE, "pyperf_suite.kernels": PACKAGE.parent / "kernels"}.get(name)
        if folder is None or (name != "pyperf_suite" and (PACKAGE / "kernels").is_dir()):
            return None
        return importlib.util.spec_from_file_location(
            name, str(folder / "__init__.py"), submodule_search_locations=[str(folder)]
        )


if __name__ == "__main__":
    sys.meta_path.insert(0, SuiteFinder)

from pyperf_suite.process.serving import Requests, serve_copies  # noqa: E402 - found by the finder
from pyperf_suite.user_kernels.kernel_case import KernelCase  # noqa: E402

# Signals of timers and programs to themselves. Held from before the first thread, which inherits that, so that no
# handler works while the clock runs and the result is copied; let through when the judge looks if it still changes.
_REAL_TIME = range(getattr(signal, "SIGRTMIN", 1), getattr(signal, "SIGRTMAX", 0) + 1)
_HELD_SIGNALS = {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGIO, *_REAL_TIME}
# Taken before any code of a user's runs, which may put others in their places.
_MASK, _EXIT = signal.pthread_sigmask, os._exit
# Functions that read the frames of callers, or search all objects of a process, by the names of CPython's audit hooks.
_LOOKS = {
    *("sys._getframe", "sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
}
_LOOKING_ATTRIBUTES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}


class InspectionDetector:
    """Notes who but libraries reads frames or searches objects while it is `on`; its hook cannot be taken out again."""

    def __init__(self) -> None:
        self.on = False
        self._noted: set[str] = set()
        self._libraries = (
            *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
            "<frozen",
        )
        self._frame_of_caller = sys._getframe
        sys.addaudithook(self._hear)

    def noted(self) -> list[str]:
        """Return the notes since the last call."""
        found, self._noted = sorted(self._noted), set()
        return found

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or (event not in _LOOKS and event != "object.__getattr__"):
            return
        if event == "object.__getattr__" and arguments[1] not in _LOOKING_ATTRIBUTES:
            return
        self.on = False  # what follows is heard as well
        caller = self._frame_of_caller(1)
        while caller is not None and caller.f_code.co_filename.endswith("/inspect.py"):
            caller = caller.f_back  # type: ignore[assignment]
        if caller is None or not caller.f_code.co_filename.startswith(self._libraries):
            self._noted.add(event if event in _LOOKS else arguments[1])
        self.on = True


def main() -> None:
    """Answer requests, or be the template of processes that do so (`serve CHANNEL MODULES`)."""
    arguments, sys.argv[1:] = sys.argv[1:], []
    if arguments:
        needed = "pyperf_suite.user_kernels.api", "pyperf_suite.user_kernels.guards"
        serve_copies(int(arguments[1]), (*arguments[2:], *needed), work)
    else:
        work()


def work() -> None:
    """Answer requests until there are no more."""
    requests = Requests()
    _MASK(signal.SIG_BLOCK, _HELD_SIGNALS)
    try:
        # This process is ended, and not the judge, where memory runs out.
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
    process = AuditedCase()
    for request in requests:
        requests.answer(process.answer(request))
    _EXIT(0)


class AuditedCase(KernelCase):
    """A case whose code is heard, held and guarded while it runs."""

    caught = (BaseException,)

    def __init__(self) -> None:
        super().__init__()
        self._let_through: set[Any] = set()

    def _start(self, root: str, path: Sequence[str], target: str, device: str) -> dict[str, Any]:
        self._lookout = InspectionDetector()
        return super()._start(root, path, target, device)

    def _expect(self, expected: str, sizes: str, budget_s: float, terms: float | None) -> dict[str, Any]:
        return {**super()._expect(expected, sizes, budget_s, terms), **self._replaced()}

    def _time(self, first: int, samples: int, batch: int) -> dict[str, Any]:
        # A kernel that compiles itself may look around at its first launches.
        self._lookout.on = self._times_called >= LOOKS_ALLOWED
        try:
            reported = super()._time(first, samples, batch)
        finally:
            self._lookout.on = False
        signals = [signal.strsignal(each) for each in sorted(self._let_through)]
        return {**reported, **self._noted(), "signals": signals}

    def _keep_result(self) -> None:
        self._let_through = _HELD_SIGNALS - _MASK(signal.SIG_BLOCK, _HELD_SIGNALS)
        super()._keep_result()

    def _changed(self, after_s: float) -> dict[str, Any]:
        _MASK(signal.SIG_UNBLOCK, _HELD_SIGNALS)
        found = super()._changed(after_s)
        _MASK(signal.SIG_BLOCK, _HELD_SIGNALS)
        return found

    def _draw(self, launches: int) -> dict[str, Any]:
        return {**super()._draw(launches), **self._noted()}

    def _audit(self, **request: Any) -> dict[str, Any]:
        self._lookout.on = True
        found = super()._audit(**request)
        self._lookout.on = False
        return {**found, **self._noted()}

    def _noted(self) -> dict[str, Any]:
        """Name functions that are no longer what they were, and who looked at what is not its own."""
        return {**self._replaced(), "looked": self._lookout.noted()}


if __name__ == "__main__":
    main()
