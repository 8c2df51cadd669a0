"""Growth decisions under virtual time: what each of them leads to, for any model, and what advice is worth there."""
