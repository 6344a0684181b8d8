"""Threads: locks, queues, pools, locals, conditions, timers, barriers, and their exceptions."""

import concurrent.futures
import queue
import sys
import threading
import time

total, lock = 0, threading.Lock()


def add():
    global total
    for _ in range(1000):
        with lock:
            total += 1


threads = [threading.Thread(target=add, name=f"adder-{n}") for n in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(total, [thread.is_alive() for thread in threads], threading.current_thread().name)
print(threading.current_thread() is threading.main_thread(), threading.active_count())

# %%
items, results = queue.Queue(), queue.SimpleQueue()


def work():
    while (item := items.get()) is not None:
        results.put(item**2)


worker = threading.Thread(target=work, daemon=True)
worker.start()
for n in [1, 2, 3, None]:
    items.put(n)
worker.join()
print([results.get_nowait() for _ in range(3)], results.empty())

# %%
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda n: n + 1, range(10))), pool.submit(divmod, 7, 2).result())
    failed = pool.submit(int, "x")
    print(repr(failed.exception()), [f.done() for f in concurrent.futures.as_completed([failed])])
local = threading.local()
local.value = "main"


def see(seen):
    seen.append(hasattr(local, "value"))


seen = []
thread = threading.Thread(target=see, args=(seen,))
thread.start()
thread.join()
print(seen, local.value)

# %%
condition, barrier, met = threading.Condition(), threading.Barrier(3), []


def meet(n):
    barrier.wait(timeout=30)
    with condition:
        met.append(n)
        condition.notify_all()


for n in range(2):
    threading.Thread(target=meet, args=(n,)).start()
barrier.wait(timeout=30)
with condition:
    print(condition.wait_for(lambda: len(met) == 2, timeout=30), sorted(met))
rung = threading.Event()
threading.Timer(0.01, rung.set).start()
print(rung.wait(30), threading.Semaphore(1).acquire(blocking=False))
started = time.monotonic()
time.sleep(0.02)
print(time.monotonic() - started >= 0.02, time.perf_counter_ns() > 0, sys.getswitchinterval())


def fail():
    raise ValueError("in a thread")


threading.excepthook = lambda told: print("hook", told.exc_type.__name__, told.exc_value)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
threading.excepthook = threading.__excepthook__
thread = threading.Thread(target=fail, name="failing")
thread.start()
thread.join()
