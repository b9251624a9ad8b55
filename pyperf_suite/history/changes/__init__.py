"""Steps in a series: what detectors nominate, what a rerun confirms, shapes that changed."""
