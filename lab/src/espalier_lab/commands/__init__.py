"""Commands that the laboratory adds to `espalier` (entry points `espalier.commands`)."""
