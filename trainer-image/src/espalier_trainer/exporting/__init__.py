"""The trained model outside its run: `loading.load` builds it, `writing.export` writes it into a folder.

`loading` also reads a run or a folder of checkpoints; `card` describes an export to people.
"""
