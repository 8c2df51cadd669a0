"""What the benchmark of a language model that grows (`gpt.py`) is made of."""
