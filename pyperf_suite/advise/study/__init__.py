"""What the laws foretell of a study's configurations: whether they fit, their memory, their time."""
