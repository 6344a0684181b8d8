"""Code that runs in a thread of this process, as sessions of the sandbox run in their own.

The host's side is the sandbox's own `AsyncSession`: the same deadlines, tools and results. Only
its body is another one, a thread. There are no walls.
"""
