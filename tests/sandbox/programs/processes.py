"""Programs and processes of its own, for sessions that may have them."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys


def double(connection):
    for number in iter(connection.recv, None):
        connection.send(number * 2)
    sys.exit(3)


async def talk():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    print(await process.communicate(b"through cat"), process.returncode)
    shell = await asyncio.create_subprocess_shell("echo in a shell; exit 4")
    print(await shell.wait())


print("before", flush=True)
ran = subprocess.run(["sh", "-c", "echo out; echo err >&2; exit 3"], capture_output=True, text=True)
print(ran.returncode, ran.stdout, ran.stderr, os.system("exit 2"))
print(subprocess.check_output([sys.executable, "-c", "print(input())"], input=b"from the parent"))
with subprocess.Popen(["sleep", "60"]) as sleeping:
    sleeping.send_signal(signal.SIGTERM)
print(sleeping.returncode)
try:
    subprocess.run(["sleep", "60"], timeout=0.05)
except subprocess.TimeoutExpired as error:
    print("timed out", error.cmd)
try:
    subprocess.run(["no-such-program"])
except FileNotFoundError as error:
    print(error)

# %%
ours, theirs = multiprocessing.Pipe()
worker = multiprocessing.get_context("fork").Process(target=double, args=(theirs,))
worker.start()
for number in (1, 21, None):
    ours.send(number)
print(ours.recv(), ours.recv(), worker.join(), worker.exitcode)
if (child := os.fork()) == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
asyncio.run(talk())
with os.popen("echo piped | tr a-z A-Z") as pipe:
    print(pipe.read())
