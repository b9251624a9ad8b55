#!/bin/sh
# torch 2.13.0: a program that uses the new names of float32 precision alone is told that it mixes them with the old.
#
# One would guess that reading a setting never fails, and that the old getter says what float32 products are computed in.
# After `torch.backends.fp32_precision = "tf32"` and nothing else, `torch.get_float32_matmul_precision()` and
# `torch.backends.cuda.matmul.allow_tf32` raise RuntimeError, "you have used mix of the legacy and new APIs"; after "ieee"
# they answer, and it is `torch.backends.cudnn.allow_tf32` that raises. Where the old setter comes first and the new name
# of one backend second, the getter says "high" though products on that backend are exact. A library that saves and
# restores the old setting around its own work fails in programs that have moved on.
#
# Exits with 1 if that changes. Takes about a minute, most of it the installation.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.4.6"
cat >"$folder/getters.py" <<'PYTHON'
import sys

import torch

backends = torch.backends


def answer(read):
    try:
        return str(read())
    except RuntimeError:
        return "raises"


def cuda(precision):
    backends.cuda.matmul.fp32_precision = precision


def every(precision):
    backends.fp32_precision = precision


cases = {
    "nothing set": (lambda: None, ("highest", "False", "True")),
    "all tf32": (lambda: every("tf32"), ("raises", "raises", "True")),
    "all ieee": (lambda: every("ieee"), ("highest", "False", "raises")),
    "cuda tf32": (lambda: cuda("tf32"), ("raises", "raises", "True")),
    "old high": (lambda: torch.set_float32_matmul_precision("high"), ("high", "True", "True")),
    "old high, cuda ieee": (
        lambda: (torch.set_float32_matmul_precision("high"), cuda("ieee")),
        ("high", "raises", "True"),
    ),
}
name = sys.argv[1]
configure, expected = cases[name]
configure()
found = (
    answer(torch.get_float32_matmul_precision),
    answer(lambda: backends.cuda.matmul.allow_tf32),
    answer(lambda: backends.cudnn.allow_tf32),
)
products = backends.cuda.matmul.fp32_precision
print(f"{name}: get_float32_matmul_precision {found[0]}, allow_tf32 of products {found[1]}, of cuDNN {found[2]}; {products}")
raise SystemExit(found != expected)
PYTHON
"$folder/venv/bin/python" -c "import torch; print('torch', torch.__version__)"
for name in "nothing set" "all tf32" "all ieee" "cuda tf32" "old high" "old high, cuda ieee"; do
  "$folder/venv/bin/python" "$folder/getters.py" "$name"
done
