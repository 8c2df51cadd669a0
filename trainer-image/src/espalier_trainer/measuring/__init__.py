"""Measures a run: duration of steps, noise of gradients, and the course of the loss (`espalier_api.measurements`)."""
