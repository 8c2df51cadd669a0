"""Measured effects of growth: corpora of models, and trainings in virtual time that are collected and judged."""
