"""Benchmarks of envweave, alone and against other libraries. `benchmarks/run --list` lists them.

A folder per family: `vector`, `remote`, `coding`, `sandbox`. `benchmark.py` in each says what is
compared and measures it. `measurement` holds what they share. `requirements` pins the libraries
that envweave is compared with.
"""
