"""Growth by layers (Net2DeeperNet): `points` finds the places, `trial` tries them, `deepen` grows one.

`conditions` defines which layers qualify; `insertion` builds the inserted layers with the values of an identity.
"""
