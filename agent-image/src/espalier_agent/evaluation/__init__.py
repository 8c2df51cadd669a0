"""How good a policy is: on tables beside its baselines, and before it replaces another."""
