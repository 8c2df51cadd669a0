"""The training loop under a time budget, and function-preserving growth."""
