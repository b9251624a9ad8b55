"""The fresh pytest processes of a session: one at a time, with the session's own arguments, asked test by test."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.processes import owned_folder
from pyperf_suite.pytests.node import Node
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.runner.worker_process import WorkerLost, WorkerProcess

# Says to the plugin that the session is such a process.
VARIABLE = "PYPERF_PYTEST_CHILD"


class Children:
    """Answers of tests in fresh processes. Where one is lost, the next test gets another."""

    def __init__(self, config: pytest.Config, device: Device, effort: Effort, deadline_s: float) -> None:
        self._config, self._device, self._effort, self._deadline_s = config, device, effort, deadline_s
        self._folder = owned_folder("pytest")
        self._process: WorkerProcess | None = None
        self._expected = ""

    def ask(self, node: Node, following: Node | None) -> dict[str, Any]:
        """How the test ended and what it measured; `following` is the one to be asked for next, None for the last.

        Raises WorkerLost with the reason where the process ended in the test, or ran past the deadline, and UserError
        where none can be started.
        """
        if self._process is not None and self._expected != node.nodeid:
            self.end()  # it keeps fixtures for another test
        process = self._process or self._start()
        self._expected = following.nodeid if following is not None else ""
        request = {
            "node": node.nodeid,
            "next": self._expected,
            "case": node.planned().case.to_json(),
            "effort": self._effort.to_json(),
        }
        try:
            process.send(request)
            answer = process.receive(self._deadline_s)
        except WorkerLost:
            self._process = None
            raise
        if following is None:
            self.end()
        return answer

    def end(self) -> None:
        """End the process; the next test gets another."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def close(self) -> None:
        """End the process and remove what it left; a second call does nothing."""
        self.end()
        self._folder.cleanup()

    def _start(self) -> WorkerProcess:
        try:
            self._process = WorkerProcess(self._device, self._command(), {VARIABLE: "1"})
            self._process.receive(self._deadline_s)
        except (OSError, WorkerLost) as error:
            self._process = None
            what = str(error).removeprefix("The worker process ")
            raise UserError(
                f"A fresh pytest process, in which tests are measured, could not be started: {what}"
            ) from None
        return self._process

    def _command(self) -> tuple[str, ...]:
        """This session's own, but for the folders that pytest writes to."""
        program = Path(sys.argv[0])
        started_as = (
            (str(program),) if program.name in ("pytest", "py.test") and program.is_file() else ("-m", "pytest")
        )
        own = [f"--rootdir={self._config.rootpath}"]
        own += ["-c", str(self._config.inipath)] if self._config.inipath is not None else []
        if self._config.pluginmanager.hasplugin("cacheprovider"):
            own += ["-o", f"cache_dir={self._folder.name}"]
        if self._config.pluginmanager.hasplugin("pytest_cov"):
            own.append("--no-cov")  # tracing takes time
        return (sys.executable, *started_as, *own, *map(str, self._config.invocation_params.args))


def following(nodes: Iterable[Node]) -> Iterable[tuple[Node, Node | None]]:
    """Each with the one after it."""
    listed = list(nodes)
    return zip(listed, [*listed[1:], None], strict=False)
