"""The sbatch script of a study: one job whose every experiment is a torchrun of its own, on as many nodes as it takes.

Nothing is run here; the script is text for sbatch, and what it starts gathers its records in one run's folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pyperf_suite.errors import UserError

MOST_NODES, MOST_GPUS = 1 << 14, 64
# As sbatch takes it: minutes, hours, or days in front.
TIME = re.compile(r"\d+(-\d+(:\d+){0,2}|(:\d+){0,2})")


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
        for name, value, most in (("nodes", self.nodes, MOST_NODES), ("gpus-per-node", self.gpus_per_node, MOST_GPUS)):
            if not 1 <= value <= most:
                raise UserError(f"--{name} {value} was asked for: ask for 1 to {most}.")
        if self.time and not TIME.fullmatch(self.time):
            raise UserError(f"--time {self.time!r} is no time limit: write it as sbatch takes it, as in 02:00:00.")
        for name, text in (("partition", self.partition), ("account", self.account)):
            if not text.isprintable():
                raise UserError(f"--{name} {text!r} holds characters that no script line can: give a plain name.")

    def placed(self, ranks: int) -> tuple[int, int]:
        """Nodes, and ranks on each, as few nodes as hold them evenly. Raises UserError where they do not fit."""
        for nodes in range(1, self.nodes + 1):
            if ranks % nodes == 0 and ranks // nodes <= self.gpus_per_node:
                return nodes, ranks // nodes
        raise UserError(
            f"{ranks} ranks cannot be placed evenly on up to {self.nodes} nodes of {self.gpus_per_node} GPUs: ask for "
            "more --nodes, or leave that world out with --ranks."
        )


def sbatch_script(
    allocation: Allocation, worlds: Sequence[int], experiments: int, arguments: Sequence[str], results: str
) -> str:
    """The script for configurations that take `worlds` ranks, in their order, as `study ARGUMENTS` numbers them.

    `arguments` are those of the study itself, the grid's file first. Raises UserError where a world cannot be placed.
    """
    allocation.validate()
    for text in (*arguments, results):
        if not text.isprintable():
            raise UserError(f"{text!r} holds characters that no script line can: rename it.")
    places = [allocation.placed(ranks) for ranks in worlds]
    rows = [f"{number} {nodes} {ranks}" for number, (nodes, ranks) in enumerate(places, 1)]
    study = " ".join(shlex.quote(each) for each in ("study", *arguments, "--results", results))
    return "\n".join(
        [
            "#!/bin/bash",
            *_directives(allocation),
            "",
            "set -u",
            "# A requeued job goes on with the run that it began.",
            'run="study-${SLURM_JOB_ID}"',
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f'study=(-m pyperf_suite {study} --resume "$run")',
            "",
            f"for experiment in $(seq {experiments}); do",
            "    # The number of a configuration, its nodes, and its ranks on each.",
            "    while read -r only nodes ranks; do",
            '        srun --relative=0 --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 \\',
            '            torchrun --nnodes="$nodes" --nproc-per-node="$ranks" --max-restarts=0 --rdzv-backend=c10d \\',
            '            --rdzv-id="$run-$only-$experiment" --rdzv-endpoint="$first:${STUDY_PORT:-29500}" \\',
            '            "${study[@]}" --only "$only" </dev/null ||',
            '            echo "configuration $only, experiment $experiment: exit code $?" >&2',
            "    done <<'CONFIGURATIONS'",
            *rows,
            "CONFIGURATIONS",
            "done",
            'python "${study[@]}" --tell',
            "",
        ]
    )


def _directives(allocation: Allocation) -> list[str]:
    asked = {
        "job-name": "pyperf-study",
        "nodes": str(allocation.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": str(allocation.gpus_per_node),
        "time": allocation.time,
        "partition": allocation.partition,
        "account": allocation.account,
        "output": "study-%j.log",
    }
    return [f"#SBATCH --{name}={shlex.quote(value)}" for name, value in asked.items() if value]
