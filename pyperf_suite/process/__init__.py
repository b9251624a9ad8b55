"""Processes that answer requests: the handle on one, the side that serves, templates, what the system says of them."""
