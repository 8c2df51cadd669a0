"""The commands of `espalier policies`."""
