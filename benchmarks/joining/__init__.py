"""What `benchmarks/elastic.py` is made of."""
