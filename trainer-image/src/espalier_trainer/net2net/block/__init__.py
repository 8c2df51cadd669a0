"""Growth by whole blocks: `insertion` finds and copies runs of equal blocks; `projections` finds what closes a block.

`trial` tries both, `unfolding` phases a copied run in gradually, and `points` combines them.
"""
