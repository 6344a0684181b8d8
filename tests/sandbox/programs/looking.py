"""What code can learn about itself: sources, signatures, hints, names."""

import ast
import dataclasses
import dis
import enum
import inspect
import io
import sys
import textwrap


class Base:
    """A base."""

    def method(self, a: int, /, b: str = "x", *rest: float, key: "Base | None" = None) -> bytes:
        """A method."""
        return b""


class Empty:
    pass


@dataclasses.dataclass
class Record:
    x: int = 0


class Colour(enum.Enum):
    RED = 1


# %%
def outer(x):
    def inner(y):
        # a comment that stays
        return x + y

    return inner


print(inspect.getsource(outer), inspect.getsource(Base), inspect.getsource(outer(1)), sep="|")
print(inspect.signature(Base.method), inspect.getdoc(Base.method))
print(inspect.getmodule(outer).__name__, outer.__module__, outer.__qualname__, __name__)
print(inspect.getsource(Empty), inspect.getsource(Record), inspect.getsource(Colour))
print(inspect.get_annotations(Base.method, eval_str=True))
print(ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(outer(1))))))
print(inspect.stack()[0].function, sys._getframe().f_code.co_name)

# %%
shown = io.StringIO()
dis.dis(lambda: 1, file=shown)
print("RETURN_VALUE" in shown.getvalue(), sys.modules["__main__"].outer is outer)
print(sorted(name for name in globals() if name[0] not in "_T"))
print(eval("outer(1)(2)"), [value for value in (exec("z = 5"), z)])  # noqa: F821 - made by exec
print(__builtins__.len is len, globals() is vars(sys.modules[__name__]))
print(sys.argv[1:], sys.flags.optimize, sys.byteorder, sys.maxunicode, __debug__)
