"""A corpus of growth: families of models drawn from a seed, and data sets that need no download."""
