"""The policy that advises how to grow: encoders, learning, evaluation and the HTTP service."""
