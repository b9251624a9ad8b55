"""Better dimensions for a model: candidates, their price by the laws, causes, and how it is told."""
