"""Closures, decorators, context managers, and the tools that make them."""

import contextlib
import functools


def counter():
    count = 0

    def add(by=1):
        nonlocal count
        count += by
        return count

    return add


def repeat(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            """Repeats."""
            return [function(*args, **kwargs) for _ in range(times)]

        return wrapper

    return decorate


add = counter()
add()

# %%
print(add(5), add.__closure__[0].cell_contents, add.__code__.co_freevars)
late = [lambda: n for n in range(3)]
print([one() for one in late])


@repeat(2)
def shout(word):
    """Shouts."""
    return word.upper()


print(shout("a"), shout.__name__, shout.__doc__, shout.__wrapped__("b"))


# %%
@contextlib.contextmanager
def told(name):
    print("in", name)
    try:
        yield name
    except KeyError as error:
        print("swallowed", error)
    finally:
        print("out", name)


with told("a") as a, told("b"):
    raise KeyError(a)
with contextlib.ExitStack() as stack:
    for name in "xy":
        stack.enter_context(told(name))
    stack.callback(print, "callback")
with contextlib.suppress(ZeroDivisionError):
    1 / 0


# %%
@functools.lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.singledispatch
def kind(value):
    return "thing"


@kind.register
def _(value: int):
    return "int"


print(fibonacci(80), fibonacci.cache_info(), kind(1), kind(""))
print(functools.reduce(lambda x, y: x * y, range(1, 6)), functools.partial(int, base=2)("101"))


class Cached:
    @functools.cached_property
    def value(self):
        print("computed")
        return 3


cached = Cached()
print(cached.value + cached.value)
