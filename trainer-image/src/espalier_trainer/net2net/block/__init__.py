"""Whole blocks: `insertion` finds runs of equal blocks and copies them, `projections` finds what closes a block.

`trial` tries both, `unfolding` lets a copied run take over step by step, `points` puts all of it together.
"""
