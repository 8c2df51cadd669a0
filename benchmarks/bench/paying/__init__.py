"""What the benchmark of growing under a GPU timeline (`pays`) is made of."""
