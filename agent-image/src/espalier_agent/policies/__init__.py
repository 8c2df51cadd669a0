"""The policy: what it reads of a model, its networks, its files and what it advises."""
