"""The trained model outside of its run: `loading.load` builds it, `writing.export` writes it into a folder.

`source` finds what a run, a folder of checkpoints or an export holds; `card` describes it to people.
"""
