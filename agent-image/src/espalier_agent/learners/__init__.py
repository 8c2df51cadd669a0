"""Learners, each a module that makes a policy from outcome tables; `learning` maps their names to them."""
