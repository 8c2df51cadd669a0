"""Objects of the API server: their kinds, names and labels, what they say, and what the operator makes."""
