"""Signals that a program handles itself, and the one that interrupts it."""

import os
import select
import signal
import time

heard = []
before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(signal.Signals(number)))
print(before, signal.setitimer(signal.ITIMER_REAL, 0.01))
while not heard:
    time.sleep(0.01)
print(heard, signal.alarm(0), signal.getsignal(signal.SIGALRM) is not None)
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append("usr1"))
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
print(heard[1:])

# %%
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt as error:
    print("interrupted", repr(error))


def strike(number, frame):
    raise TimeoutError("struck")


signal.signal(signal.SIGALRM, strike)
signal.setitimer(signal.ITIMER_REAL, 0.01)
try:
    while True:
        pass
except TimeoutError as error:
    print(error)
print(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}))
signal.raise_signal(signal.SIGUSR2)
print(signal.sigpending(), signal.sigwait({signal.SIGUSR2}))
signal.pthread_sigmask(signal.SIG_SETMASK, set())

# %%
ours, theirs = os.pipe()
os.set_blocking(theirs, False)
woken = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
os.kill(os.getpid(), signal.SIGUSR1)
print(woken, select.select([ours], [], [], 10)[0] == [ours], os.read(ours, 1)[0] == signal.SIGUSR1)
signal.set_wakeup_fd(-1)
print(
    signal.default_int_handler is signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
)
print(signal.getsignal(signal.SIGPIPE), signal.strsignal(signal.SIGSEGV))
raise KeyboardInterrupt
