"""A training step: how it is cut, its memory, its exchange, its time."""
