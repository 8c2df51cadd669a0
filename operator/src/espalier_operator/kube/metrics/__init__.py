"""The content of `/metrics`: measurements of what happened between two statuses, and series of what is there now."""
