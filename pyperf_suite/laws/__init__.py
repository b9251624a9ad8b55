"""Closed forms that probes fit to their own measurements: tiles and waves, alpha-beta, traffic, sizes of a model."""
