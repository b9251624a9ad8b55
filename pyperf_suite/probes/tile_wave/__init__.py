"""Tile and wave quantization: sweeps across the edges of tiles and waves, and the law that explains them."""
