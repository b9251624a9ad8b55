"""Names the ranks of this node that die before the group has formed, when there is no store yet to hear them by.

Each rank leaves its process number in a folder that the ranks of one launch share, before anything heavy is imported.
A thread looks after the others and takes SIGTERM, which torchrun sends when a rank has died.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import stat
import sys
import threading
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from pyperf_suite import processes
from pyperf_suite.ranks.environment import LAUNCHER_VARIABLES, RankEnvironment, rank_environment

EXIT_CODE = 2

_LOOK_S = 0.25
# After SIGTERM a rank that has left no word yet is waited for so long: its Python may only be slower.
_SLOW_S = 3.0

_VERDICT = "verdict"
_LEFT = "left"

_THEN = "these ranks are ended; what was measured is kept."


class Starting:
    """This rank among those of its node, until the group has formed. `stand_by` makes the one of a process."""

    def __init__(self, environment: RankEnvironment) -> None:
        """Take SIGTERM over, be seen by the others and begin to look after them; from the main thread."""
        self._environment = environment
        self._parent = os.getppid()
        self._folder: Path | None = None
        self._stopped = threading.Event()
        self._signals = os.pipe()
        for end in self._signals:
            os.set_blocking(end, False)
        # Python runs handlers in the main thread, which may be in a long import; the byte in the pipe wakes ours.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self._folder = _folder_of_launch(environment)
        self._write(str(environment.rank), f"{os.getpid()} {processes.start_of(os.getpid())}")
        atexit.register(self._leave, os.getpid())
        self._thread = threading.Thread(target=self._watch, name="starting", daemon=True)
        self._thread.start()

    def hand_over(self) -> None:
        """The group's own watchdog has taken SIGTERM over. What was received before is acted on here, by ending."""
        self._stopped.set()
        os.write(self._signals[1], b"\0")
        self._thread.join()

    def absent(self, ranks: Iterable[int]) -> dict[int, str]:
        """Of these ranks, those of this node that do not run: died, stopped, left, or silent from the first.

        A silent one may only be slow.
        """
        fates = {rank: self._fate(rank) or "silent" for rank in set(ranks) & set(self._on_node())}
        return {rank: fate for rank, fate in sorted(fates.items()) if fate != "alive"}

    def told(self) -> str:
        """The sentence that a rank of this node ended with, and that all others are to end with; empty so far."""
        return self._read(_VERDICT)

    def tell(self, sentence: str) -> str:
        """Have the ranks of this node that still start end with this sentence, or with the one that was told first."""
        self._write(_VERDICT, sentence, first=True)
        return self.told() or sentence

    def _fate(self, rank: int) -> str:
        """What became of a rank: alive, died, left or stopped; empty if it left no word, as those of other nodes."""
        word = self._read(str(rank)).split()
        if word == [_LEFT]:
            return "left"
        if len(word) != 2:
            return ""
        pid, start = map(int, word)
        if not processes.is_alive(pid, start):
            # It may have left a word since.
            return "left" if self._read(str(rank)) == _LEFT else "died"
        return "stopped" if processes.state_of(pid) in "Tt" else "alive"

    def _watch(self) -> None:
        terminated_s = None
        while True:
            is_over = self._stopped.is_set() and terminated_s is None
            ready, _, _ = select.select([self._signals[0]], [], [], 0.0 if is_over else _LOOK_S)
            if ready and signal.SIGTERM in os.read(self._signals[0], 64) and terminated_s is None:
                terminated_s = time.monotonic()
            sentence = self._trouble(terminated_s)
            if sentence:
                self._end(sentence)
            if is_over and terminated_s is None:
                return

    def _trouble(self, terminated_s: float | None) -> str:
        """Why to end, or "" if there is no reason, or none that is known yet."""
        told = self.told()
        if told or self._folder is None:
            return told or (
                f"The run was ended by SIGTERM while the ranks were starting: {_THEN}" if terminated_s else ""
            )
        known = self._on_node()
        fates = {rank: self._fate(rank) for rank in known}
        for fate, how in (("died", "died"), ("left", "ended by itself, see its own message,")):
            ranks = [rank for rank in known if fates[rank] == fate]
            # One that left has said why; the others wait to hear from the launcher that the run is over.
            if ranks and (fate == "died" or terminated_s is not None):
                return f"{named(ranks)} {how} while starting, before the ranks had joined: {_THEN}"
        if os.getppid() != self._parent:
            return f"The launcher died while the ranks were starting: {_THEN}"
        if terminated_s is None:
            return ""
        silent = [rank for rank in known if not fates[rank]]
        if not silent:
            return f"The run was ended by SIGTERM while the ranks were starting: {_THEN}"
        if time.monotonic() - terminated_s > _SLOW_S:
            return f"{named(silent)} died while starting, before Python had begun: {_THEN}"
        return ""

    def _on_node(self) -> list[int]:
        """The ranks of this node, without this one, as far as they are known."""
        here = self._environment
        if here.on_node:
            first = here.rank - here.local_rank
            ranks = set(range(first, first + here.on_node))
        else:
            ranks = set(self._heard_of())
        return sorted(ranks - {here.rank})

    def _heard_of(self) -> list[int]:
        """The ranks that left a word on this node."""
        with contextlib.suppress(OSError):
            if self._folder is not None:
                return [int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()]
        return []

    def _end(self, sentence: str) -> None:
        sentence = self.tell(sentence)
        say(self._environment.rank, sentence)
        os._exit(EXIT_CODE)

    def _leave(self, pid: int) -> None:
        """At the end of the process: it was not killed. The last to go removes what all of them left."""
        if self._folder is None or os.getpid() != pid:
            return
        self._write(str(self._environment.rank), _LEFT)
        ranks = self._heard_of()
        if len(ranks) == self._environment.on_node and all(self._read(str(rank)) == _LEFT for rank in ranks):
            import shutil

            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, name: str, content: str, first: bool = False) -> None:
        """Make it the whole content of a file at once; with `first` only if there is none yet."""
        if self._folder is None:
            return
        private = self._folder / f".{name}.{os.getpid()}"
        with contextlib.suppress(OSError):
            descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
            if first:
                os.link(private, self._folder / name)
            else:
                private.replace(self._folder / name)
        with contextlib.suppress(OSError):
            private.unlink()

    def _read(self, name: str) -> str:
        if self._folder is None:
            return ""
        with contextlib.suppress(OSError):
            return (self._folder / name).read_text()
        return ""


_started: Starting | None = None


def stand_by() -> Starting | None:
    """Watch over the start of this launch's ranks from now on, once a process; None if there are no others."""
    global _started
    environment = rank_environment()
    if _started is None and environment.launched and environment.count > 1 and os.name == "posix":
        _started = Starting(environment)
    return _started


def say(rank: int, sentence: str) -> None:
    """The sentence as a line of its own: all ranks write at the same time, and what `print` writes in two can mix."""
    with contextlib.suppress(OSError):
        sys.stderr.flush()
        os.write(2, f"rank {rank}: {sentence}\n".encode(errors="replace"))


def named(ranks: list[int]) -> str:
    """The ranks in words, as in `Ranks 1, 2`; the first eight of many."""
    some = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"Rank {some}" if len(ranks) == 1 else f"Ranks {some}"


def _folder_of_launch(environment: RankEnvironment) -> Path | None:
    """This user's own folder for the ranks that one launcher started here; None where there cannot be one."""
    launcher = _launcher()
    if not processes.start_of(launcher):
        return None
    import tempfile

    place = f"{environment.address}:{environment.port} {environment.restart} {environment.count}"
    name = f"{processes.owned_name('ranks', launcher)}{zlib.crc32(place.encode()):08x}"
    folder = Path(tempfile.gettempdir()) / name
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if ours else None


def _launcher() -> int:
    """The nearest ancestor that is no rank itself: a script may stand between the launcher and this process."""
    pid = os.getppid()
    while pid > 1:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # somebody else's, as the daemon of a batch system is
            return pid
        if not any(variable.startswith(f"{name}=".encode()) for name in LAUNCHER_VARIABLES for variable in environ):
            return pid
        pid = processes.parent_of(pid)
    return pid
