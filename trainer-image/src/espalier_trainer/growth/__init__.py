"""How a run asks how to grow, and what it does with the answer."""
