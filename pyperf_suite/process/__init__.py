"""Processes that answer requests: the handle on one, the side that serves, and what the system says of them."""
