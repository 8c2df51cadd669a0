"""Reclaim of extra workers: candidates, their order, and the requests to jobs. Pure."""
