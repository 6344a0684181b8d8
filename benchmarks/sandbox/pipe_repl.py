"""A Python program that runs code from its standard input, for `subprocess`, bubblewrap and Docker.

Each input line is the `repr` of code. Each output line is the `repr` of ("value", value), of
("error", message) or of ("call", arguments) of the tool `add`, whose result is the next input line.
It imports almost nothing, so that it starts fast.
"""

import sys
from _ast import Expr, Expression, PyCF_ONLY_AST


def execute(code: str, variables: dict[str, object]) -> object:
    """Run code and return the value of its last expression."""
    tree = compile(code, "<step>", "exec", PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and type(tree.body[-1]) is Expr else None
    exec(compile(tree, "<step>", "exec"), variables)
    if last is None:
        return None
    return eval(compile(Expression(last.value), "<step>", "eval"), variables)


def main() -> None:
    def add(*arguments: object) -> object:
        send("call", list(arguments))
        return eval(sys.stdin.readline())

    variables: dict[str, object] = {"__name__": "__main__", "add": add}
    for line in sys.stdin:
        try:
            reply = "value", execute(eval(line), variables)
        except Exception as error:  # noqa: BLE001 - sent to the parent process
            reply = "error", str(error)
        send(*reply)


def send(kind: str, value: object) -> None:
    sys.stdout.write(f"{(kind, value)!r}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
