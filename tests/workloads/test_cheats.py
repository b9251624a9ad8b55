"""Kernels that cheat fail, each for what it does; kernels that work in unusual ways pass.

cheats.md and honest_kernels.md hold them. tools/cheats.py counts how often each is caught.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

HEAD = """\
import numpy as np

import pyperf_suite as suite


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def exact(x):
    return softmax(x.astype(np.float64))


def rows():
    return np.random.standard_normal((64, 1024)).astype(np.float32)


"""

TORCH_HEAD = """\
import torch

import pyperf_suite as suite


def exact(x):
    return x.double().softmax(-1)


def rows():
    return torch.randn(64, 1024)


"""

CASE = "\n\n\n@suite.kernel()\ndef case():\n    return {launched}\n"
LAUNCHED = "suite.launch(measured, rows(), reference=exact)"


@dataclass(frozen=True)
class Entry:
    """A kernel of a page: its heading, the reason that its record must give ("" for none), and its lines."""

    name: str
    reason: str
    lines: str

    def text(self, function: str) -> str:
        """The bench file, with `measured` under that name."""
        body, _, launched = self.lines.partition("\n# launched as\n")
        head = TORCH_HEAD if "import torch" in body else HEAD
        case = CASE.format(launched=launched.strip() or LAUNCHED)
        return (head + body.rstrip() + case).replace("measured", function)


def entries(page: str) -> list[Entry]:
    """What a page lists."""
    text = (HERE / page).read_text()
    found = re.findall(r"^## (.+?)\n(.*?)```python\n(.*?)\n```", text, re.DOTALL | re.MULTILINE)
    return [Entry(name, about.partition("<")[0].strip(), lines) for name, about, lines in found]


CHEATS, HONEST = entries("cheats.md"), entries("honest_kernels.md")
