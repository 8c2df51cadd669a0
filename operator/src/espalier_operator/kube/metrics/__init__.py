"""What `/metrics` gives: measurements of what happened between two statuses, and series of what is there now."""
