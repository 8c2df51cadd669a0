"""What makes a simulation impossible."""


class TraceError(ValueError):
    """A trace, or what belongs to it, cannot be used; the message names file, line, field and remedy."""
