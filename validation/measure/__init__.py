"""Times on real machines what the simulator is later asked to predict. Needs torch; kernels need more.

`python -m validation.measure --suite micro -o DIR` runs the campaign of `campaign/*.toml`; see `__main__`.
"""
