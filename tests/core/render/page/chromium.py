"""A headless Chromium driven through its debugging pipe, with the standard library alone."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
DEADLINE_S = 60.0


def find_chromium() -> str | None:
    """The browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page. Use as a context manager; `console` holds what went wrong in the page."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # High, so that neither lies where the browser wants the other: it reads from 3 and answers on 4.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 100) for end in (to_browser, from_browser)]

        def place() -> None:
            for end, wanted in zip(ends, (3, 4), strict=True):
                os.dup2(end, wanted)

        self._process = subprocess.Popen(
            [program, *_OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            close_fds=False,
            preexec_fn=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.console: list[str] = []
        self.requests: list[str] = []
        self._loaded = False

    def __enter__(self) -> Chromium:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer to one command of the protocol. Raises RuntimeError where the browser refuses it."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded; what was noted of the page before is forgotten."""
        self.console.clear()
        self.requests.clear()
        self._loaded = False
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._note(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def wait_for(self, condition: str, meanwhile: Callable[[], None] = lambda: None) -> Any:
        """The value of the expression once it is true; meanwhile is done before each look. Raises TimeoutError."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            meanwhile()
            if value := self.run(condition):
                return value
            time.sleep(0.1)
        raise TimeoutError(f"{condition} did not come true within {DEADLINE_S:.0f} s")

    def size(self, width: int, height: int, phone: bool = False) -> None:
        """The window's size in CSS pixels."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def prefer(self, scheme: str = "light", media: str = "") -> None:
        """Dark or light, screen or print."""
        self.ask(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def point_at(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Move the mouse a little about this place of an element, wherever the page has it now, and onto it."""
        x, y = self.run(
            f"(() => {{ const r = document.querySelector('{selector}').getBoundingClientRect();"
            f"return [r.x + r.width * {across}, r.y + r.height * {down}]; }})()"
        )
        for aside in (-20, 0):
            self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x + aside, y=y)

    def press(self, key: str) -> None:
        """Press and release a key, as Tab or Enter."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser ended or did not answer")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def _note(self, event: dict[str, Any]) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(details["exceptionDetails"].get("exception", {}).get("description", details))[:500])
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(each.get("value", each)) for each in details["args"])[:500])
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.console.append(details["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"][:80])
