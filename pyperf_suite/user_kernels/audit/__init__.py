"""Two processes that share nothing, for code that may attack whoever judges it, and what it may not do there."""
