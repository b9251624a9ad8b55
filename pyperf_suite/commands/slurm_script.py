"""The sbatch script of a study: one job whose every experiment is a torchrun of its own, on as many nodes as it takes.

Nothing is run here; the script is text for sbatch, and what it starts gathers its records in one run's folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pyperf_suite.errors import UserError

MOST = {"nodes": 1 << 14, "gpus_per_node": 64}
# As sbatch takes it: minutes, hours, or days in front.
TIME = re.compile(r"\d+(-\d+(:\d+){0,2}|(:\d+){0,2})")

SCRIPT = r"""#!/bin/bash
@directives@

set -u
# A requeued job goes on with the run that it began.
run="study-${SLURM_JOB_ID}"
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
study=(-m pyperf_suite @study@ --resume "$run")

for experiment in $(seq @experiments@); do
    # The number of a configuration, its nodes, and its ranks on each.
    while read -r only nodes ranks; do
        srun --relative=0 --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 \
            torchrun --nnodes="$nodes" --nproc-per-node="$ranks" --max-restarts=0 --rdzv-backend=c10d \
            --rdzv-id="$run-$only-$experiment" --rdzv-endpoint="$first:${STUDY_PORT:-29500}" \
            "${study[@]}" --only "$only" </dev/null ||
            echo "configuration $only, experiment $experiment: exit code $?" >&2
    done <<'CONFIGURATIONS'
@configurations@
CONFIGURATIONS
done
python "${study[@]}" --tell
"""


@dataclass(frozen=True)
class Allocation:
    """What the job asks of the cluster; empty text is left to the cluster's defaults."""

    nodes: int
    gpus_per_node: int
    time: str = ""
    partition: str = ""
    account: str = ""

    def validate(self) -> None:
        """Raise UserError for an allocation that cannot be, or text that would end its line."""
        for name, most in MOST.items():
            if not 1 <= getattr(self, name) <= most:
                option = name.replace("_", "-")
                raise UserError(f"--{option} {getattr(self, name)} was asked for: ask for 1 to {most}.")
        if self.time and not TIME.fullmatch(self.time):
            raise UserError(f"--time {self.time!r} is no time limit: write it as sbatch takes it, as in 02:00:00.")
        _require_printable(self.partition, self.account)

    def placed(self, ranks: int) -> tuple[int, int]:
        """Nodes, and ranks on each, as few nodes as hold them evenly. Raises UserError where they do not fit."""
        for nodes in range(1, self.nodes + 1):
            if ranks % nodes == 0 and ranks // nodes <= self.gpus_per_node:
                return nodes, ranks // nodes
        raise UserError(
            f"{ranks} ranks cannot be placed evenly on up to {self.nodes} nodes of {self.gpus_per_node} GPUs: ask for "
            "more --nodes, or leave that world out with --ranks."
        )


def sbatch_script(allocation: Allocation, worlds: Sequence[int], experiments: int, arguments: Sequence[str]) -> str:
    """The script for configurations that take `worlds` ranks, in their order, as `study ARGUMENTS` numbers them.

    Raises UserError where a world cannot be placed.
    """
    allocation.validate()
    _require_printable(*arguments)
    asked = {"job-name": "pyperf-study", **vars(allocation), "ntasks-per-node": 1, "output": "study-%j.log"}
    places = [allocation.placed(ranks) for ranks in worlds]
    gaps = {
        "directives": "\n".join(
            f"#SBATCH --{name.replace('_', '-')}={shlex.quote(str(value))}" for name, value in asked.items() if value
        ),
        "study": shlex.join(["study", *arguments]),
        "experiments": str(experiments),
        "configurations": "\n".join(f"{number} {nodes} {ranks}" for number, (nodes, ranks) in enumerate(places, 1)),
    }
    return re.sub("@([a-z]+)@", lambda gap: gaps[gap[1]], SCRIPT)


def _require_printable(*texts: str) -> None:
    for text in texts:
        if not text.isprintable():
            raise UserError(f"{text!r} holds characters that no script line can: give a plain name.")
