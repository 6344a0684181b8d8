"""Register an environment, play one episode, and step eight of them together."""

import envweave as ew

ew.register("local://counter-v0", factory=lambda: ew.examples.CounterEnv())

with ew.make("local://counter-v0", autoreset=True) as env:
    result = env.reset(seed=7)
    while not result.done:
        result = env.step({"delta": 1})
        print(result.observation.value, result.reward, result.done)
    print("next:", [request.type for request in result.requests])

with ew.make_vector("lineworld-v0", num_envs=8, autoreset=True) as vector:
    batch = vector.reset(seed=0)
    episodes, total = 0, 0.0
    for _ in range(100):
        batch = vector.step(batch.current["goal"])  # one array: walk towards the goal
        episodes += int(batch.done.sum())
        total += float(batch.reward.sum())
print(f"{episodes} episodes, mean return {total / episodes:.2f}")
