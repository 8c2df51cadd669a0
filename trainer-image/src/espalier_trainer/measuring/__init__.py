"""Measures a run: duration of steps, noise of gradients, the loss over time (`espalier_core.types.measurements`)."""
