"""How models of other people grow: which models, and what is measured of each."""
