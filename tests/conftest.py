"""What every test may count on."""

import signal

# Whoever starts the tests in the background of a shell has Ctrl-C ignored, by them and by all that
# they start. Tests of interrupts mean the usual.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
