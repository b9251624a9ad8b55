"""Hear who reads frames or searches the objects of a process, by CPython's audit hooks."""

from __future__ import annotations

import sys
import sysconfig
from typing import Any

# Functions that read the frames of callers, or search all objects of a process, by the names of CPython's audit hooks.
_LOOKS = {
    *("sys._getframe", "sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
}
_LOOKING_ATTRIBUTES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}


class InspectionDetector:
    """Notes who reads frames or searches objects while it is `on`; libraries do so too, and are not noted.

    A kernel has no use for it; one that does looks for the loop that times it. The hook cannot be taken out again.
    """

    def __init__(self) -> None:
        self.on = False
        self._noted: set[str] = set()
        self._libraries = (*{sysconfig.get_path(name) for name in _LIBRARIES}, "<frozen")
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


_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
