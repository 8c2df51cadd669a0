"""The operator's state of each job, derived from the API server's objects."""
