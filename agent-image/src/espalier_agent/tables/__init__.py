"""Outcome tables as decision trees, and as arrays to learn from."""
