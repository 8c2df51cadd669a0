"""The policy: its features of a model, its networks, its files and its advice."""
