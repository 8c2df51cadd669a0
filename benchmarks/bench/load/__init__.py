"""A cluster without containers, and what the benchmark of the operator measures on it."""
