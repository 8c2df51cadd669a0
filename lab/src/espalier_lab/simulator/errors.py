"""Errors that make a simulation impossible."""


class TraceError(ValueError):
    """A trace, or a file of it, cannot be used; the message names file, line, field and remedy."""
