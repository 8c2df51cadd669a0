"""The parts of `benchmarks/operator_load.py`: a cluster without containers, and what is measured on it."""
