"""The one command of Espalier."""
