"""The command line of Espalier."""
