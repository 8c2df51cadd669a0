"""Starting models by name."""
