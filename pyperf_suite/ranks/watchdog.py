"""Threads that watch over the ranks of a run, and name those that died, were stopped or do not answer.

Before the group has formed there is no store yet: each rank leaves its process number in a folder that the ranks of
one launch share, before anything heavy is imported, and a thread looks after the others of its node. From then on a
thread sends heartbeats to the store. A thread blocked in a collective whose peer is gone cannot be woken, so this one
names who is missing and ends the process, on every rank, within the deadline of what is waited for. Both take SIGTERM,
which torchrun sends when a rank has died.
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyperf_suite.errors import ExitCode
from pyperf_suite.process import system
from pyperf_suite.ranks.launch import RankEnvironment, launcher_process, rank_environment

_LOOK_S = 0.25
_SLOW_S = 3.0  # after SIGTERM a rank that has left no word yet is waited for so long: its Python may only be slower

# Held by the thread that says why this process ends, and ends it: before and after the group has formed there is one.
_ending = threading.Lock()

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
        self._write(str(environment.rank), f"{os.getpid()} {system.start_of(os.getpid())}")
        self._pid = os.getpid()
        atexit.register(self.leave)
        self._thread = threading.Thread(target=self._watch, name="starting", daemon=True)
        self._thread.start()

    def hand_over(self) -> None:
        """The group's own watchdog has taken SIGTERM over. What was received before is acted on here, by ending."""
        self._stopped.set()
        os.write(self._signals[1], b"\0")
        self._thread.join()

    def absent(self, ranks: Iterable[int]) -> dict[int, str]:
        """Return those of these ranks on this node that do not run: died, stopped, left, or (maybe slow) silent."""
        fates = {rank: self._fate(rank) or "silent" for rank in set(ranks) & set(self._on_node())}
        return {rank: fate for rank, fate in sorted(fates.items()) if fate != "alive"}

    def message(self) -> str:
        """The sentence that a rank of this node ended with, and that all others are to end with; empty so far."""
        return self._read(_VERDICT)

    def tell(self, sentence: str) -> str:
        """End the ranks of this node that still start, with this sentence or the one that was published first."""
        self._write(_VERDICT, sentence, first=True)
        return self.message() or sentence

    def _fate(self, rank: int) -> str:
        """Return a rank's fate: alive, died, left or stopped; empty if it left no word, as on other nodes."""
        word = self._read(str(rank)).split()
        if word == [_LEFT]:
            return "left"
        if len(word) != 2:
            return ""
        pid, start = map(int, word)
        if not system.is_alive(pid, start):
            # It may have left a word since.
            return "left" if self._read(str(rank)) == _LEFT else "died"
        return "stopped" if system.state_of(pid) in "Tt" else "alive"

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
        reported, me = self.message(), named([self._environment.rank])
        if reported or self._folder is None:
            return reported or (
                f"{me} was ended by SIGTERM while the ranks were starting: {_THEN}" if terminated_s else ""
            )
        on_node = self._on_node()
        fates = {rank: self._fate(rank) for rank in on_node}
        for fate, how in (("died", "died"), ("left", "ended by itself, see its own message,")):
            ranks = [rank for rank in on_node if fates[rank] == fate]
            # One that left has said why; the others wait to hear from the launcher that the run is over.
            if ranks and (fate == "died" or terminated_s is not None):
                return f"{named(ranks)} {how} while starting, before the ranks had joined: {_THEN}"
        if os.getppid() != self._parent:
            return f"The launcher died while the ranks were starting: {_THEN}"
        if terminated_s is None:
            return ""
        silent = [rank for rank in on_node if not fates[rank]]
        if not silent:
            return f"{me} was ended by SIGTERM while the ranks were starting: {_THEN}"
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
            ranks = set()
            with contextlib.suppress(OSError):
                files = self._folder.iterdir() if self._folder is not None else ()
                ranks = {int(path.name) for path in files if path.name.isdecimal()}
        return sorted(ranks - {here.rank})

    def _end(self, sentence: str) -> None:
        sentence = self.tell(sentence)
        if not _ending.acquire(blocking=False):
            return
        say(self._environment.rank, sentence)
        self.leave()
        os._exit(ExitCode.FAILED)

    def leave(self) -> None:
        """Leave word that this rank was not killed. The last to go removes what all of them left."""
        if self._folder is None or os.getpid() != self._pid:
            return
        self._write(str(self._environment.rank), _LEFT)
        fates = {self._fate(rank) for rank in self._on_node()}
        # Once the run ends by a sentence, a rank that left no word by now never will.
        if not fates & ({"alive"} if self.message() else {"alive", "stopped", ""}):
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
    is_one_of_many = environment.launched and environment.count > 1 and not environment.is_pod
    if _started is None and is_one_of_many and os.name == "posix":
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
    launcher = launcher_process()
    if not system.start_of(launcher):
        return None
    import tempfile

    place = f"{environment.address}:{environment.port} {environment.restart} {environment.count}"
    name = f"{system.owned_name('ranks', launcher)}{zlib.crc32(place.encode()):08x}"
    folder = Path(tempfile.gettempdir()) / name
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if ours else None


BEAT_S = 0.25
# Heartbeats read this far apart show who lives; long enough for a thread that gets a quarter of a busy core.
LISTEN_S = 1.0
GRACE_S = 1.0  # after the sentence is known, so that slower ranks still hear this one live and read the sentence too
STANDS_STILL_S = 3.0  # a thread that beats so late was stopped, or had no CPU

# Without a word from rank 0 for so long, nothing more will come; a starved rank is heard from sooner.
FIRST_SILENT_S = 20.0

STORE_GONE = "The rendezvous store is gone, so rank 0's node or its torchrun is: what was measured is kept."

_ABORT = "abort"


class Watchdog:
    """Heartbeats, the abort key and the deadline of what the main thread is in. Start it once a process.

    `store` is a client of its own: the main thread's may be blocked in a wait. `starting` knows of ranks of this node
    that have not joined. Each of `before_end` is called with the sentence first of all when the process ends: it aborts
    what hangs, so that devices are left clean.
    """

    def __init__(self, store: Any, rank: int, count: int, starting: Starting | None = None) -> None:
        self._store, self._rank, self._count, self._starting = store, rank, count, starting
        self._beats, self._beaten_s = 0, time.monotonic()
        self._still_s = 0.0
        self._step = 0
        self._doing = "starting"
        self._deadline: tuple[float, float] | None = None  # when, and how long it was
        self._last_words: list[Callable[[str], None]] = []
        self.before_end: list[Callable[[str], None]] = []
        self._stopped = threading.Event()
        self._handed_over = False
        self._first_heard = ("", time.monotonic())
        self._signals: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch, from the main thread. SIGTERM, which torchrun sends when a rank has died, is taken over."""
        self._beat()
        # Python runs handlers in the main thread, which may be blocked; the byte written to a pipe wakes this one.
        self._signals = os.pipe()
        os.set_blocking(self._signals[1], False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def hand_over(self) -> None:
        """The main thread reports and ends by itself from now on; this one only shows that the rank lives."""
        self._handed_over = True

    def at_end(self, last_words: Callable[[str], None]) -> None:
        """Call `last_words(sentence)` before the process is ended, to keep what was measured and say why."""
        self._last_words.append(last_words)

    def enter(self, step: int, doing: str, deadline_s: float | None) -> None:
        """The main thread is in step number `step`, which must be over within `deadline_s`."""
        self._step, self._doing = step, doing
        self._deadline = None if deadline_s is None else (time.monotonic() + deadline_s, deadline_s)
        self._beat()

    def leave(self) -> None:
        self._deadline = None

    def who_is_missing(self, doing: str, waited_s: float, otherwise: str = "") -> str:
        """One sentence on the ranks that do not answer, the same on all ranks; `otherwise` where all are heard."""
        named = self._said()
        if named:
            return named
        before = self._heard()
        self._live_for(LISTEN_S)
        named = self._said()
        if named:
            return named
        after = self._heard()
        sentence = self._who_did_not_start(after, is_terminated=not doing)
        sentence = sentence or _who_is_silent(before, after, self._rank, doing, waited_s)
        sentence = sentence or otherwise or _who_is_behind(after, self._rank, self._step, doing, waited_s)
        sentence = str(self._store.compare_set(_ABORT, "", sentence).decode())
        if self._starting is not None:
            self._starting.tell(sentence)
        return sentence

    def _who_did_not_start(self, heard: Sequence[str], is_terminated: bool) -> str:
        """A sentence on ranks of this node that died or were stopped before they joined; empty if there are none."""
        if self._starting is None:
            return ""
        absent = self._starting.absent(rank for rank, beat in enumerate(heard) if not beat)
        fates = {"died": "died", "stopped": "was stopped by a signal", "left": "ended by itself"}
        # The launcher saw a death; whoever has not even begun by now is it.
        fates |= {"silent": "died"} if is_terminated else {}
        for fate, how in fates.items():
            ranks = [rank for rank in absent if absent[rank] == fate]
            if ranks:
                return (
                    f"{named(ranks)} {how} while starting, before the ranks had joined: these ranks are ended; what "
                    "was measured is kept."
                )
        return ""

    def announce(self, sentence: str) -> None:
        """End all other ranks with this sentence; this one goes on alone."""
        self.hand_over()
        self._store.compare_set(_ABORT, "", sentence)

    def _watch(self) -> None:
        while not self._stopped.is_set():
            assert self._signals is not None
            ready, _, _ = select.select([self._signals[0]], [], [], BEAT_S)
            terminated = bool(ready) and signal.SIGTERM in os.read(self._signals[0], 64)
            try:
                self._beat()
                sentence = "" if self._handed_over else self._trouble(terminated)
            except RuntimeError:  # the store is gone, and with it the way to agree on anything
                sentence = STORE_GONE
            if sentence and not self._stopped.is_set() and not self._handed_over:
                self._finish(sentence)

    def _trouble(self, terminated: bool) -> str:
        said = self._said()
        if said:
            return said
        if terminated:
            return self.who_is_missing("", 0.0)
        deadline = self._deadline
        if deadline is not None and time.monotonic() > deadline[0]:
            return self.who_is_missing(self._doing, deadline[1])
        if self._rank == 0:
            return ""
        heard, since = self._store.get("alive/0").decode() if self._store.check(["alive/0"]) else "", time.monotonic()
        if heard != self._first_heard[0]:
            self._first_heard = (heard, since)
        is_silent = since - self._first_heard[1] > FIRST_SILENT_S
        return self.who_is_missing(self._doing, FIRST_SILENT_S) if is_silent else ""

    def _finish(self, sentence: str) -> None:
        if not _ending.acquire(blocking=False):
            return
        for release in self.before_end:
            with contextlib.suppress(Exception):
                release(sentence)
        say(self._rank, sentence)
        for last_words in self._last_words:
            with contextlib.suppress(Exception):
                last_words(sentence)
        with contextlib.suppress(RuntimeError):
            self._live_for(GRACE_S)
        if self._starting is not None:
            self._starting.leave()
        system.sweep(is_ending=True)
        os._exit(ExitCode.FAILED)

    def _live_for(self, seconds: float) -> None:
        """Wait, and be heard meanwhile: other ranks listen at the same time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._beat()
            time.sleep(BEAT_S)

    def stood_still_s(self) -> float:
        """The longest time since this was last asked in which this process did not run; 0 of a short one."""
        seconds, self._still_s = self._still_s, 0.0
        return seconds if seconds >= STANDS_STILL_S else 0.0

    def _beat(self) -> None:
        now = time.monotonic()
        self._still_s, self._beaten_s = max(self._still_s, now - self._beaten_s), now
        self._beats += 1
        self._store.set(f"alive/{self._rank}", f"{self._beats} {self._step} {self._doing}")

    def _said(self) -> str:
        reported = self._starting.message() if self._starting is not None else ""
        if reported:
            return str(self._store.compare_set(_ABORT, "", reported).decode())
        return self._store.get(_ABORT).decode() if self._store.check([_ABORT]) else ""

    def _heard(self) -> list[str]:
        """The last heartbeat of each rank: how many, the number of its step, what it does; "" from who never came."""
        keys = [f"alive/{rank}" for rank in range(self._count)]
        return [self._store.get(key).decode() if self._store.check([key]) else "" for key in keys]


def _who_is_silent(before: Sequence[str], after: Sequence[str], me: int, doing: str, waited_s: float) -> str:
    """A sentence on the ranks whose heart did not beat between two hearings; empty where all were heard."""
    silent = [rank for rank, (one, two) in enumerate(zip(before, after, strict=True)) if one == two and rank != me]
    never = [rank for rank in silent if not after[rank]]
    waiting = _while_waiting(doing, waited_s)
    if never:
        return f"{named(never)} never joined{waiting}: these ranks are ended; what was measured is kept."
    if silent:
        last = after[silent[0]].split(" ", 2)[2]
        return (
            f"{named(silent)} stopped answering in {last!r}{waiting}: the process died, was stopped or lost its "
            "network; these ranks are ended and what was measured is kept."
        )
    return ""


def _who_is_behind(after: Sequence[str], me: int, my_step: int, doing: str, waited_s: float) -> str:
    """A sentence where all ranks live: on those at an earlier step, else that none came out of this one."""
    if not doing:
        return f"{named([me])} was ended by SIGTERM from outside, and none had died: what was measured is kept."
    behind = [rank for rank, beat in enumerate(after) if int(beat.split(" ", 2)[1]) < my_step]
    if behind:
        where, waiting = after[behind[0]].split(" ", 2)[2], _while_waiting(doing, waited_s)
        return f"{named(behind)} did not get past {where!r}{waiting}: these ranks are ended; what was measured is kept."
    return (
        f"No rank came out of {doing!r} within {waited_s:g} s, though all are alive: the network between them may be "
        "stuck, or the deadline too short (--deadline); what was measured is kept."
    )


def _while_waiting(doing: str, waited_s: float) -> str:
    if not doing:
        return ""
    return f" while the others waited {waited_s:g} s for {doing!r}" if waited_s else f" while others were in {doing!r}"
