#!/bin/sh
# torch 2.13.0, gloo: the maximum over ranks keeps a NaN or loses it, by rank and by the element's place in the tensor.
#
# One would guess that a NaN on any rank is in the result on all, as torch.maximum has it, or on none, as C's fmax has
# it; either way the same for each element. A NaN in a single number is kept where rank 0 has it and lost where another
# rank has it; of 1,000 elements that are NaN on one rank, those of its part of the ring are NaN afterwards (500 of 2
# ranks, 250 of 4), the others are the maximum of what is left. MIN does the same; SUM keeps all of them. A check such as
# "is the largest loss of all ranks finite?" passes while the loss of rank 1 is NaN.
#
# Exits with 1 if that changes. Takes about a minute, most of it the installation.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile "torch==2.13.0" "numpy==2.4.6"
cat >"$folder/maxima.py" <<'PYTHON'
import sys

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing


def rank(number, ranks, store, answers):
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=ranks)
    found = []
    for operation in (distributed.ReduceOp.MAX, distributed.ReduceOp.MIN, distributed.ReduceOp.SUM):
        for holder in range(ranks):
            for size in (1, 1000):
                numbers = torch.full((size,), float("nan") if number == holder else float(number))
                distributed.all_reduce(numbers, op=operation)
                found.append((str(operation).rpartition(".")[2], holder, size, int(numbers.isnan().sum())))
    if number == 0:
        answers.put(found)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    right = True
    for ranks in (2, 4):
        answers = multiprocessing.get_context("spawn").SimpleQueue()
        processes = multiprocessing.spawn(rank, (ranks, f"{sys.argv[1]}/{ranks}", answers), nprocs=ranks, join=False)
        for operation, holder, size, left in answers.get():
            print(f"{ranks} ranks, {operation}, {size} NaN on rank {holder}: {left} NaN in the result")
            kept = size if operation == "SUM" else int(holder == 0) if size == 1 else size // ranks
            right = right and left == kept
        processes.join()
    raise SystemExit(not right)
PYTHON
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/maxima.py" "$folder"
