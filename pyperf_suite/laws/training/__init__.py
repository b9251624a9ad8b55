"""Closed forms of training: its memory, its activations, its order in a pipeline, data parallelism."""
