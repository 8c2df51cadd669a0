"""`espalier agent ...`: one module for each command."""
