"""What the benchmarks of models that grow by blocks (`gpt.py`, `cifar.py`) are made of."""
