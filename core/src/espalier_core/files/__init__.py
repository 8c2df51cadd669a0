"""Versioned JSON files, and the layout of the folder of a run."""
