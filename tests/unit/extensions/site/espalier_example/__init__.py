"""A package of a user: one of everything that Espalier lets a package add."""
