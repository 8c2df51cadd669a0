"""How good a policy is: on tables, compared with baselines, and before it replaces another."""
