"""The content of `/metrics`: measurements of changes between two statuses, and series of the current state."""
