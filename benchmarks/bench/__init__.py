"""The benchmarks: `python -m bench` lists them, `python -m bench NAME` runs one. A file of `cases` is a benchmark.

Its docstring says what is measured, `OPTIONS` are its options, `QUICK` what `--quick` changes, and `run` gives its
tables one after the other. With `KEEPS` it goes on with runs of before, which it checks to be of the same options.
"""
