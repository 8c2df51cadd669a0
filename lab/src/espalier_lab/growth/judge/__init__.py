"""Growth decisions in virtual time: the result of each decision, for any model, and the value of advice."""
