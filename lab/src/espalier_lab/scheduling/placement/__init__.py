"""Worker placement under hidden performance: an environment, rules, and a performance model learnt over tasks.

What an image serves imports parts of this package without Gymnasium, so it imports nothing by itself.
"""
