"""Whole blocks: `runs` finds equal blocks in the model's lists, `projections` what closes a block, `trial` tries both.

`insertion` puts a copy into a model, `counters` keeps consistent what counts blocks, `points` puts all of it together.
"""
