"""What goes to the two streams, how, and what comes from the third."""

import atexit
import contextlib
import io
import logging
import os
import pprint
import sys
import warnings

print("a", 1, None, sep="-", end="!\n", flush=True)
print("to the other", file=sys.stderr)
sys.stdout.write("written\n")
sys.stdout.flush()
sys.stdout.buffer.write(b"bytes\n")
sys.stdout.flush()
sys.stdout.writelines(["x\n", "y\n"])
sys.__stdout__.write("the first\n")
print("é → 😀", ascii("é"), repr("\n"))
with contextlib.redirect_stdout(io.StringIO()) as caught:
    print("hidden")
print(repr(caught.getvalue()), sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.writable())
print(
    sys.stdout.fileno(), sys.stderr.fileno(), sys.stdin.fileno(), sys.stdout.name, sys.stdout.mode
)
print(sys.stdout.readable(), sys.stdout.closed, sys.stdin.encoding, sys.stderr.errors)
pprint.pprint({"key": ["long " * 8, "list " * 8], "other": {1, 2}})
sys.stdout.flush()
os.write(1, b"descriptor\n")
print(print("returns nothing"))

# %%
warnings.warn("be careful", stacklevel=1)
warnings.warn("deprecated", DeprecationWarning, stacklevel=1)


def old():
    warnings.warn("old", FutureWarning, stacklevel=2)


old()
with warnings.catch_warnings(record=True) as kept:
    warnings.simplefilter("always")
    warnings.warn("kept", stacklevel=1)
print([str(one.message) for one in kept])
print(1 / 3, 0.1 + 0.2, 1e16, -0.0, float("nan"), 10**20, 1j)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try:
        warnings.warn("raised", stacklevel=1)
    except UserWarning as error:
        print(repr(error))

# %%
logging.warning("without a handler of its own")
logging.getLogger("deep.name").error("%s and %d", "text", 3)
logging.info("not shown")
logger = logging.getLogger("own")
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(funcName)s:%(message)s"))
logger.addHandler(handler)
logger.propagate = False
logger.setLevel(logging.DEBUG)
logger.debug("to stdout")
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("failed")

# %%
try:
    input("asked: ")
except EOFError as error:
    print(repr(error))
print(repr(sys.stdin.read()), sys.stdin.readline() == "", list(sys.stdin))


class Loud:
    def __del__(self):
        raise ValueError("in a destructor")


sys.unraisablehook = lambda told: print("unraisable", told.exc_value)
Loud()
sys.unraisablehook = sys.__unraisablehook__
print(atexit.register(str) is str, sys.getdefaultencoding(), sys.getfilesystemencoding())
