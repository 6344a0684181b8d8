"""The process itself: its environment, limits, folder, time, and pipes to itself."""

import errno
import fcntl
import getpass
import os
import pathlib
import platform
import resource
import select
import selectors
import site
import socket
import sys
import time

os.environ["OWN"] = "value"
print(
    os.getenv("OWN"), os.environ.get("MISSING", "default"), "OWN" in os.environ, os.getenvb(b"OWN")
)
print(
    os.environ["LANG"],
    os.path.expanduser("~") == os.environ["HOME"],
    os.getcwd() == os.path.abspath("."),
)
os.makedirs("sub/folder", exist_ok=True)
os.chdir("sub")
print(os.listdir("."), pathlib.Path.cwd().name, os.path.relpath("folder"))
os.chdir("..")
print(
    os.sep,
    os.name,
    sys.platform,
    platform.system(),
    sys.implementation.name,
    platform.python_version(),
)
print(os.cpu_count() >= 1, len(os.sched_getaffinity(0)) >= 1, os.getpid() > 0, os.times().user >= 0)
print(len(os.urandom(8)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0, os.umask(0o077))
print(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 10, resource.RLIM_INFINITY, os.getpriority(0, 0)
)
print(
    os.path.exists(sys.executable),
    os.path.isdir(sys.prefix),
    isinstance(site.getsitepackages(), list),
)

# %%
ours, theirs = os.pipe()
os.write(theirs, b"through a pipe")
print(os.read(ours, 100), os.get_inheritable(ours), fcntl.fcntl(ours, fcntl.F_GETFD))
one, other = socket.socketpair()
one.sendall(b"through sockets")
one.setblocking(False)
try:
    one.recv(1)
except BlockingIOError as error:
    print(errno.errorcode[error.errno])
with selectors.DefaultSelector() as selector:
    selector.register(other, selectors.EVENT_READ, "data")
    print([(key.data, mask) for key, mask in selector.select(10)], other.recv(100))
print(select.select([], [one], [], 10)[1] == [one], os.strerror(errno.ENOENT))
one.close()
print(other.recv(1), os.path.getsize("/dev/null"), open("/dev/zero", "rb").read(2))
with open("locked", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_UN)
    os.set_inheritable(file.fileno(), True)
    print(os.get_inheritable(file.fileno()), os.isatty(file.fileno()), file.fileno() > 2)
os.utime("locked", (1, 2))
print(
    os.stat("locked").st_size,
    time.strftime("%Z", time.gmtime(0)),
    time.get_clock_info("time").adjustable,
)
try:
    os.read(9999, 1)
except OSError as error:
    print(error)
print(isinstance(getpass.getpass, object), os.get_terminal_size is not None)
