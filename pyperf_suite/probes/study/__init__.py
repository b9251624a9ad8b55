"""A study of layouts: the same training step cut over ranks in many ways, each run and ranked by samples per second."""
