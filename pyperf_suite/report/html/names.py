"""What each section is called, and in which order they stand; a probe not named here goes by its own name, last."""

from __future__ import annotations

import re

TITLES = {
    "tile_wave": "Staircases: tile and wave quantization",
    "alignment": "Divisibility and cliffs",
    "baseline": "Our product beside the library's",
    "attention_heads": "Heads and head size",
    "collectives": "Collectives",
    "calibration": "Calibration of the laws",
    "study": "Study of configurations",
    "static_kernels": "Kernels as machine code",
    "topology": "What the machine is made of",
    "memory": "Training: memory",
    "block": "Training: a step and its parts",
    "backward": "Training: backward passes",
    "precision": "Training: precision",
    "data_parallel": "Training: data parallel",
    "overlap": "Training: overlap",
    "input_pipeline": "Training: input pipeline",
    "transfer": "Training: transfers",
    "optimizer": "Training: optimizers",
    "checkpointing": "Training: checkpointing",
}

# Before the overview of claims, and after all else: what is shown once a machine is in between.
FIRST = ("tile_wave", "alignment", "baseline", "attention_heads", "collectives", "calibration")
LAST = ("study", "static_kernels")


def title_of(probe: str) -> str:
    """The section's heading."""
    return TITLES.get(probe) or probe.replace("_", " ").capitalize() or "Unnamed probe"


def rank(probe: str) -> tuple[int, int, str]:
    """Sorts probes into the order of sections."""
    names = list(TITLES)
    place = names.index(probe) if probe in TITLES else len(names)
    group = 0 if probe in FIRST else 2 if probe in LAST else 1
    return group, place, probe


def anchor(*words: str) -> str:
    """An id of letters, figures and dashes that links can name."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "x" for word in words)
