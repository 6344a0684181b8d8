"""Exceptions: chains, notes, groups, tracebacks as text, and one that ends the program."""

import sys
import traceback


class OwnError(Exception):
    def __str__(self):
        return "own: " + super().__str__()


def fail(depth):
    if depth:
        return fail(depth - 1)
    try:
        {}["missing"]
    except KeyError as error:
        raise OwnError("wrapped") from error


try:
    fail(2)
except OwnError as error:
    error.add_note("a note")
    traceback.print_exc()
    print(traceback.format_exc().count("in fail"), error.__cause__.args)
    print([frame.name for frame in traceback.extract_tb(error.__traceback__)])

try:
    raise ExceptionGroup("many", [ValueError(1), TypeError(2), ExceptionGroup("in", [OSError(3)])])
except* ValueError as group:
    print("values", group.exceptions)
except* (TypeError, OSError) as group:
    print("others", group.exceptions)


def recurse():
    return recurse() + 1


try:
    recurse()
except RecursionError as error:
    print(error)
try:
    compile("x = = 1", "<text>", "exec")
except SyntaxError as error:
    print(error, error.lineno, error.offset)
try:
    "abc".uper()
except AttributeError as error:
    print(error, error.name)
print(sys.exc_info(), sys.getrecursionlimit())
try:
    raise LookupError("first")
except LookupError:
    fail(1)
