"""What a reclaim costs: the arms of `benchmarks/shrinking.py`, their prices and tables."""
