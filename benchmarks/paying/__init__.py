"""What the benchmark of growing under a GPU timeline (`elastic_pays.py`) is made of."""
