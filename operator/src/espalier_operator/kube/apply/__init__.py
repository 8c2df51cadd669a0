"""Writes statuses, Events and objects of jobs from their state."""
