"""Git repositories of the tests' own: files written and committed under tags."""

import subprocess
from pathlib import Path


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, tag: str, **files: str) -> None:
        self.write(**files)
        self.git("add", ".")
        self.git("commit", "-qm", tag)
        self.git("tag", tag)
