"""Growth by whole blocks: `insertion` finds and copies runs of equal blocks; `projections` finds closing parameters.

`trial` tries both, `unfolding` phases a copied run in gradually, and `points` combines them.
"""
