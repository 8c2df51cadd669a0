"""Writes jobs' statuses, Events and objects from their state."""
