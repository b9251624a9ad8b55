"""Is this machine fit for measuring? Readings, one check each, and what a person could do. Nothing is ever changed."""
