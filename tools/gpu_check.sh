#!/usr/bin/env bash
# The whole GPU path in three calls of at most 9 minutes each: tools/gpu_check.sh 1|2|3|prepare [FOLDER]; or what no GPU
# has seen yet in two, of 9 and 2.5 minutes: short|short2
# FOLDER takes log, summary and records ($OUT if it is set). docs/gpu.md says what each call does. PYTHON picks the Python.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" tools/gpu_check.py "$@"
