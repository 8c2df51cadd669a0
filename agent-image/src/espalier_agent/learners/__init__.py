"""Learners: each module makes a policy from outcome tables; `registry` maps their names to them."""
