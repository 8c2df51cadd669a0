"""What the benchmarks of models that grow by blocks (`gpt`, `gpt_large`, `cifar`) are made of."""
