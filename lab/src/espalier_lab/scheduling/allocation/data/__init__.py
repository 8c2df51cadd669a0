"""Measurements on which environments are based."""
