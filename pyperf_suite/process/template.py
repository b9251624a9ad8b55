"""Templates: processes that have imported modules and run nobody's code, of which copies start in no time."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import psutil

from pyperf_suite.process.serving import PARENT_VARIABLE, TOLD

# A template imports its modules before it answers; a process that waited so long is started by itself.
ANSWERS_WITHIN_S = 30.0


class Template:
    """One template, started at once. With `serve CHANNEL MODULES` behind it `command` serves copies (serving.py)."""

    def __init__(self, command: Sequence[str], modules: Sequence[str]) -> None:
        self._environment = _read_by_libraries()
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(ANSWERS_WITHIN_S)
        with theirs:
            self._process = subprocess.Popen(
                [*command, "serve", str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=os.environ | {PARENT_VARIABLE: str(os.getpid())},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """True while it lives and would import the same in this environment."""
        return self._process.poll() is None and self._environment == _read_by_libraries()

    def copy(self, standard: Sequence[BinaryIO]) -> psutil.Process:
        """A process with this standard input, output and error. Raises OSError where there is none."""
        told = {name: value for name, value in os.environ.items() if name.startswith(TOLD)}
        message = [str(Path.cwd()), told | {PARENT_VARIABLE: str(os.getpid())}]
        socket.send_fds(self._channel, [json.dumps(message).encode()], [each.fileno() for each in standard])
        return psutil.Process(int(self._channel.recv(32)))

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


def _read_by_libraries() -> dict[str, str]:
    """The variables that decide what modules do as they are imported."""
    return {name: value for name, value in os.environ.items() if not name.startswith(TOLD)}


templates: dict[tuple[str, ...], Template] = {}


def copy_of_a_template(
    command: Sequence[str], modules: Sequence[str], standard: Sequence[BinaryIO]
) -> psutil.Process | None:
    """A copy of the template of that command and modules, which is started where there is none; None without one."""
    key = (*command, *modules)
    try:
        if key not in templates or not templates[key].is_usable:
            forget_templates()
            templates[key] = Template(command, modules)
        return templates[key].copy(standard)
    except (OSError, ValueError, psutil.Error):
        forget_templates()
        return None


@atexit.register
def forget_templates() -> None:
    """End the templates, as this process does when it ends in order."""
    while templates:
        templates.popitem()[1].close()
