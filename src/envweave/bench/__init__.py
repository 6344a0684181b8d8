"""How fast environments are, alone and in vectors, and how much memory they take.

`envweave bench ID` shows what these modules measure. The comparisons with other libraries, in
`benchmarks/` of the repository, measure with the same clock.
"""
