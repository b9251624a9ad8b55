"""A results folder as one HTML page that needs nothing beside it: findings of every probe, drawn and told."""
