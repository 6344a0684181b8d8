"""Python that runs code on its pipes: what `subprocess`, bubblewrap and `docker run` start.

A line in is the `repr` of code, a line out the `repr` of ("value", …), or of ("call", arguments) of
the tool `add`, which is answered by a line. It imports next to nothing, so that it starts soon.
"""

import sys
from _ast import Expr, Expression, PyCF_ONLY_AST


def execute(code: str, names: dict[str, object]) -> object:
    """Run code, and return the value of its last expression."""
    tree = compile(code, "<step>", "exec", PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and type(tree.body[-1]) is Expr else None
    exec(compile(tree, "<step>", "exec"), names)
    if last is None:
        return None
    return eval(compile(Expression(last.value), "<step>", "eval"), names)


def main() -> None:
    def add(*arguments: object) -> object:
        say("call", list(arguments))
        return eval(sys.stdin.readline())

    names: dict[str, object] = {"__name__": "__main__", "add": add}
    for line in sys.stdin:
        try:
            said = "value", execute(eval(line), names)
        except Exception as error:  # noqa: BLE001 - told to the one who sent the code
            said = "error", str(error)
        say(*said)


def say(kind: str, value: object) -> None:
    sys.stdout.write(f"{(kind, value)!r}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
