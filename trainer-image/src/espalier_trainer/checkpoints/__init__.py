"""Checkpoints: the document, and the folder that holds them."""
