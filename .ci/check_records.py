"""Check that a run left readable records: every line is JSON, and at least one case was measured."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def outcomes(path: Path) -> Counter[str]:
    """How often each outcome occurs in a records.jsonl; exits with a sentence on a line that is no record."""
    counted: Counter[str] = Counter()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            counted[json.loads(line)["outcome"]] += 1
        except (ValueError, TypeError, KeyError) as error:
            sys.exit(f"{path}:{number} is no record ({type(error).__name__}: {error}).")
    return counted


def main(paths: list[Path]) -> None:
    """Check each file, and that there is one."""
    if not paths:
        sys.exit("The run left no records.jsonl.")
    for path in paths:
        counted = outcomes(path)
        if not counted["ok"]:
            sys.exit(f"{path} holds no measured case: {dict(counted) or 'it is empty'}.")
        print(f"{path}: " + ", ".join(f"{number} {outcome}" for outcome, number in counted.items()))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
