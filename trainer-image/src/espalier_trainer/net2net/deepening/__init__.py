"""More layers (Net2DeeperNet): `points` finds the places, `trial` tries them, `deepen` grows one.

What is inserted is built by `insertion` with the values of `identity`; `conditions` says what a layer must fulfil.
"""
