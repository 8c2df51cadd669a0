"""Validation of files with jobs and queues: every problem with its position and the allowed values."""
