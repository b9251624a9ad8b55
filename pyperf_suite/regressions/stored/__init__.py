"""Runs on disk as series: what each journal holds, and what breaks a series."""
