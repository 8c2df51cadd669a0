"""Optimizers, schedules of the learning rate, and averages of weights."""
