"""What the benchmark of elastic workers is made of."""
