"""Measure the speed of environments, alone and in vectors, and their memory.

`envweave bench ID` prints what these modules measure. The comparisons with other libraries, in
`benchmarks/` of the repository, measure with the same clock.
"""
