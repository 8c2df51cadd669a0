"""Evaluation of a policy: on tables, against baselines, and before it replaces another."""
