"""asyncio: gathering, queues, time limits, cancellation, groups, threads, streams of a pair."""

import asyncio
import contextvars
import socket

request = contextvars.ContextVar("request", default="none")


async def worker(name, queue, done):
    while True:
        item = await queue.get()
        if item is None:
            return name
        await asyncio.sleep(0)
        done.append(item * 2)
        queue.task_done()


async def numbers():
    for n in range(3):
        yield n
        await asyncio.sleep(0)


async def main():
    queue, done = asyncio.Queue(2), []
    workers = [asyncio.create_task(worker(n, queue, done)) for n in range(2)]
    for item in range(6):
        await queue.put(item)
    await queue.join()
    for _ in workers:
        await queue.put(None)
    print(await asyncio.gather(*workers), sorted(done))
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError as error:
        print("timed out", type(error).__name__)
    try:
        await asyncio.wait_for(asyncio.sleep(60), 0.01)
    except asyncio.TimeoutError:
        print("waited enough")
    results = await asyncio.gather(failing(), asyncio.sleep(0, "fine"), return_exceptions=True)
    print(results, [n async for n in numbers()], await asyncio.to_thread(sum, [1, 2]))
    try:
        async with asyncio.TaskGroup() as group:
            forever = group.create_task(asyncio.sleep(60))
            group.create_task(failing())
    except* ValueError as errors:
        print(errors.exceptions, forever.cancelled())
    lock, order = asyncio.Lock(), []

    async def locked(n):
        async with lock:
            await asyncio.sleep(0)
            order.append(n)

    await asyncio.gather(*(locked(n) for n in range(4)))
    request.set("outer")
    await asyncio.create_task(inner())
    print(order, request.get())
    await streams()


async def inner():
    request.set(request.get() + "+inner")
    print(request.get())


async def failing():
    raise ValueError("in a task")


async def streams():
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    other_reader, other_writer = await asyncio.open_connection(sock=theirs)
    writer.write(b"line\n")
    await writer.drain()
    print(await other_reader.readline())
    for one in (writer, other_writer):
        one.close()
        await one.wait_closed()
    print(await reader.read())


asyncio.run(main())
# %%
with asyncio.Runner() as runner:
    print(runner.run(asyncio.sleep(0, "run")), runner.run(asyncio.sleep(0, "again")))
print(request.get(), contextvars.copy_context().run(lambda: request.set("copy") and request.get()))
asyncio.run(failing())
