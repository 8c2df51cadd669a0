"""Objects of the API server: their kinds, names and labels, how they are parsed, and which ones the operator
creates.
"""
