"""The policy that advises on growth: encoders, learning, evaluation and the HTTP service."""
