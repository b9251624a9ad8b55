#!/bin/sh
# torch 2.13.0: importing the compiler replaces a function of torch's own namespace.
#
# One would guess that `torch.manual_seed` is one object for as long as a process lives, so that who remembers it can
# tell if somebody patched it. The first `torch.compile` of a process, or importing torch._dynamo, puts another function
# there; `torch.random.manual_seed` stays what it was. A guard against patched functions that compares objects calls
# every compiled function a cheat.
#
# Exits with 1 if that changes. Takes about a minute, most of it the installation.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.4.6"
"$folder/venv/bin/python" - <<'PYTHON'
import torch

before, kept = torch.manual_seed, torch.random.manual_seed
import torch._dynamo  # as torch.compile does

print("torch", torch.__version__)
print("torch.manual_seed is what it was:       ", torch.manual_seed is before)
print("torch.random.manual_seed is what it was:", torch.random.manual_seed is kept)
raise SystemExit(not (torch.manual_seed is not before and torch.random.manual_seed is kept))
PYTHON
