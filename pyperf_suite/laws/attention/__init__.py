"""Attention: pairs and blocks counted, kernels with their constants, the time on a named GPU."""
