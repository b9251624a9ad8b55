"""What the machine is: CPU, memory, GPUs; its name in the results (identity), its condition then (state)."""

from __future__ import annotations
