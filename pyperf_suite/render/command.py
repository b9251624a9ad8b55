"""The command that measures a probe again as a run did, from what its manifest keeps of the command it came from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.spec.axes import overrides_for
from pyperf_suite.spec.user_probe import is_test

STUDY = "study"
# What is measured under a name that no probe has: the command, which takes a model beside it.
_OTHER_COMMANDS = {"sizing": ("size", "--measure")}


def command_of(probe: str, manifest: Mapping[str, Any], profile: str = "") -> str:
    """One line of shell; `profile` is the records' own, for a manifest that was lost.

    Manifests of runs before axes were kept in them name none: their command measures the sweep as the profile has it.

    >>> command_of("tile_wave", {"profile": "standard", "device": "cpu", "seed": 3, "asked": ["tile=64x64x256"]})
    'pyperf-suite run tile_wave -a tile=64x64x256 --profile standard --device cpu --seed 3'
    >>> command_of("study", {"profile": "20 steps after 3", "device": "cpu", "asked": ["--data=1,2", "--steps=20"]})
    'pyperf-suite study --data=1,2 --steps=20 --device cpu'
    """
    profile, device, seed = _word(manifest, "profile") or profile, _word(manifest, "device"), manifest.get("seed")
    kept = manifest.get("asked")
    asked = [word for word in kept if isinstance(word, str)] if isinstance(kept, list) else []
    if is_test(probe):
        run_by = ["pytest", probe, "--suite-measure", *(["--suite-profile", profile] if profile else [])]
        return shlex.join([*run_by, *(["--suite-device", device] if device else [])])
    if probe == STUDY and profile not in PROFILES:
        # A study's steps and seed are arguments of its own, and the profile is made from them.
        words = [STUDY, *asked]
    elif probe in _OTHER_COMMANDS:
        words = [*_OTHER_COMMANDS[probe], *(["--profile", profile] if profile else [])]
    else:
        replaced = overrides_for(probe, dict(word.split("=", 1) for word in asked if "=" in word))
        words = ["run", probe, *(word for name, text in replaced.items() for word in ("-a", f"{name}={text}"))]
        words += ["--profile", profile] if profile else []
    words += ["--device", device] if device else []
    words += ["--seed", str(seed)] if seed and isinstance(seed, int) and words[0] == "run" else []
    return shlex.join(["pyperf-suite", *words])


def _word(manifest: Mapping[str, Any], name: str) -> str:
    value = manifest.get(name)
    return value if isinstance(value, str) else ""
