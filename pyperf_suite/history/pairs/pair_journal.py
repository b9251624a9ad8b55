"""Where a paired comparison lives: `<results>/<machine>/ab-<stamp>/` with ab.json and pairs.jsonl.

Every pair is on disk before the next one starts, so that an interrupted comparison has lost nothing it measured.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError

WritePair = Callable[[Mapping[str, Any]], None]


class PairJournal:
    """pairs.jsonl of one comparison, open for appending. Use as a context manager; call it with each pair."""

    def __init__(self, path: Path) -> None:
        """Open for appending. Raises UserError where the file cannot be written."""
        self.path = path
        self.written = 0
        try:
            self._file = files.open_for_appending(path)
            files.sync_folder(path.parent)
        except OSError as error:
            raise UserError(f"The pairs file {path} cannot be written: {error.strerror}.") from None

    def __call__(self, pair: Mapping[str, Any]) -> None:
        """Write one pair and wait until it is on disk. Raises UserError where the disk refuses."""
        line = json.dumps(pair, separators=(",", ":"), allow_nan=False) + "\n"
        try:
            self._file.write(line.encode())
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(
                f"A pair could not be written to {self.path}: {error.strerror}. All {self.written} earlier pairs are "
                "kept; free some space, or name another folder with --results."
            ) from None
        self.written += 1

    def __enter__(self) -> PairJournal:
        return self

    def __exit__(self, *_: object) -> None:
        # What is still in the buffer could not be written before and will not be now.
        with contextlib.suppress(OSError):
            self._file.close()


def comparison_folder(results: Path, machine: str, manifest: Mapping[str, Any], kind: str = "ab") -> Path:
    """Make `<results>/<machine>/<kind>-<stamp>/` with the manifest as `<kind>.json` in it.

    Raises UserError where the results folder cannot be written.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    path = results / machine / f"{kind}-{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    stamped = {"started_at": now.isoformat(timespec="seconds"), **manifest}
    try:
        files.make_folder(path)
        files.write_whole(path / f"{kind}.json", json.dumps(stamped, indent=2) + "\n")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        raise UserError(
            f"The results folder {results} cannot be written ({error.strerror}): name another with --results."
        ) from None
    return path
