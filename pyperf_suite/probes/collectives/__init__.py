"""Raw collective bandwidth: the sweep, its table, and what it means for training."""
