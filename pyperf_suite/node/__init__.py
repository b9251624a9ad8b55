"""Is this machine as good as its kind? Its settings, its parts, a fleet of them, and the jobs that run on it."""
