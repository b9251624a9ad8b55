"""What is measured for the planner alone: training steps cut over ranks."""
