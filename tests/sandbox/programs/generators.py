"""Generators: send, throw, close, delegation, expressions, and state across cells."""

import inspect
import itertools


def averages():
    total, count = 0.0, 0
    try:
        while True:
            try:
                total += yield total / count if count else None
                count += 1
            except ValueError as error:
                print("told", error)
    finally:
        print("closed after", count)


def delegating():
    result = yield from inner()
    yield ("result", result)


def inner():
    yield 1
    return 2


average = averages()
next(average)
print(average.send(10), average.send(20))

# %%
print(average.throw(ValueError("odd")), inspect.getgeneratorstate(average))
average.close()
print(list(delegating()), inspect.getgeneratorstate(average))

# %%
squares = (n * n for n in itertools.count())
print(list(itertools.islice(squares, 3)), next(squares))


def leaky():
    yield 1
    raise StopIteration


try:
    list(leaky())
except RuntimeError as error:
    print(type(error).__name__, error, repr(error.__cause__))
print(sum(n for row in ([1, 2], [3]) for n in row), {*"aab"} == {"a", "b"})
