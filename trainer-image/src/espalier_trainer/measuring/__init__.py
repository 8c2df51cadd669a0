"""Measurements of a run: duration of steps, gradient noise, the loss over time (`espalier_core.types.measurements`)."""
