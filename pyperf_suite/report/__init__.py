"""Findings presented: in the terminal and as pictures. Nothing here knows any single probe."""
