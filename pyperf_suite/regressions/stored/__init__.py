"""Runs on disk as series: the index over all journals, other projects' files, and what breaks a series."""
