"""Serve an environment over HTTP, and use it: as an `Env`, as a vector, and by a typed client.

A server that stays is started by `envweave serve counter-v0`; this one lives as long as the script.
"""

import envweave as ew
from envweave.examples.counter import CounterAction, CounterObservation


class CounterClient(ew.HTTPEnvClient[CounterAction, CounterObservation]):
    """A typed client over plain HTTP; the methods `_step_payload`, … may be overridden."""


provider = ew.SubprocessProvider()  # a server process; `LocalDockerProvider()` starts a container
url = provider.start_container("counter-v0")
provider.wait_for_ready(url)
try:
    with ew.make(url, token=provider.token) as env:
        env.reset(seed=7)
        print("make:", env.step({"delta": 2}).observation.value)

    with ew.make_vector(url, num_envs=16, token=provider.token, autoreset=True) as vector:
        vector.reset(seed=0)
        print("make_vector:", vector.step([{"delta": 1}] * 16).reward.sum())

    with CounterClient(url, token=provider.token) as client:
        client.reset()
        result = client.step(CounterAction(delta=3))
        print("HTTPEnvClient:", result.observation.value, result.done, client.state().step_count)
finally:
    provider.stop_container()
