"""More layers (Net2DeeperNet): `points` finds the places, `trial` tries them, `deepen` grows one.

`insertion` builds the inserted layers with the values of `identity`; `conditions` defines which layers qualify.
"""
