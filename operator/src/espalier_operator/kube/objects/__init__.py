"""Objects of the API server: their kinds, names and labels, their parsing, and those that the operator creates."""
