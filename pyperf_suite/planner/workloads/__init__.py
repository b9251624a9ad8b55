"""Training steps cut over ranks, which only the planner measures."""
