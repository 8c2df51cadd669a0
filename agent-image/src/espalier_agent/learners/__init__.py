"""Learners: each module makes a policy from outcome tables; `learning` maps their names to them."""
