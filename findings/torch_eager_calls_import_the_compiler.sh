#!/bin/sh
# torch 2.13.0: an optimizer that is never compiled imports the compiler.
#
# One would guess that what an eager training step calls is there once torch is imported, so that the first call of each
# function costs little more than the second. The first optimizer of a process, the first activation checkpoint and the
# first dispatch mode each import torch._dynamo, torch._inductor and sympy: 823 modules, 1.1 to 1.2 s on an idle machine
# and 8 to 10 s without bytecode on a busy one. `torch.autograd.grad` imports 487 (sympy among them) if it is given
# `grad_outputs`, and none if it is not. A timer of first steps sees an import and calls it warm-up.
#
# Exits with 1 if that changes. Takes about a minute, most of it the installation.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.4.6"
cat >"$folder/first_call.py" <<'PYTHON'
import sys
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return operator(*args, **(kwargs or {}))


def in_a_mode():
    with Mode():
        torch.sin(x)


x = torch.zeros(4, requires_grad=True)
calls = {
    "sin": lambda: torch.sin(x),
    "grad of a scalar": lambda: torch.autograd.grad(x.sum(), x),
    "grad with grad_outputs": lambda: torch.autograd.grad(x.sin(), x, torch.ones(4)),
    "SGD": lambda: torch.optim.SGD([x], lr=0.1),
    "checkpoint": lambda: checkpoint(torch.sin, x, use_reentrant=False),
    "dispatch mode": in_a_mode,
}
name = sys.argv[1]
before, begin = set(sys.modules), time.perf_counter()
calls[name]()
seconds, added = time.perf_counter() - begin, set(sys.modules) - before
found = [module for module in ("sympy", "torch._dynamo", "torch._inductor") if module in added]
print(f"{name}: {seconds:.2f} s, {len(added)} modules, {', '.join(found) or 'no compiler'}")
everything, expected = ["sympy", "torch._dynamo", "torch._inductor"], []
expected = ["sympy"] if name == "grad with grad_outputs" else [] if name in ("sin", "grad of a scalar") else everything
raise SystemExit(found != expected)
PYTHON
"$folder/venv/bin/python" -c "import torch; print('torch', torch.__version__)"
for name in "sin" "grad of a scalar" "grad with grad_outputs" "SGD" "checkpoint" "dispatch mode"; do
  "$folder/venv/bin/python" "$folder/first_call.py" "$name"
done
