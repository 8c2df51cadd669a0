"""The trained model outside of its run: `loading.load` builds it, `writing.export` writes it into a folder.

`loading` also finds what a run or a folder of checkpoints holds; `card` describes an export to people.
"""
