"""PPO in numpy on 32 LineWorlds at once: a linear policy and a linear value function."""

import numpy as np

import envweave as ew

NUM_ENVS, STEPS, UPDATES, EPOCHS = 32, 32, 30, 4
GAMMA, LAMBDA, CLIP, LEARNING_RATE = 0.99, 0.95, 0.2, 0.3

rng = np.random.default_rng(0)
policy, value = np.zeros(4), np.zeros(4)  # the policy's output is the logit of moving right


def features(columns):
    position, goal = columns["position"], columns["goal"]
    return np.stack([position, goal, position * goal, np.ones_like(position)], axis=1)


def right(x):
    return 1 / (1 + np.exp(-x @ policy))


with ew.make_vector("lineworld-v0", num_envs=NUM_ENVS, autoreset=True) as env:
    batch = env.reset(seed=0)
    for update in range(UPDATES):
        steps = []
        for _ in range(STEPS):
            x = features(batch.current)
            went_right = rng.random(NUM_ENVS) < right(x)
            batch = env.step(np.where(went_right, 1, -1))
            # `successor` is the true next observation, also where an autoreset happened.
            target = batch.reward + GAMMA * batch.bootstrap * (features(batch.successor) @ value)
            steps.append((x, went_right, target - x @ value, batch.done, batch.reward))
        advantage, advantages = np.zeros(NUM_ENVS), []
        for _, _, delta, done, _ in reversed(steps):
            advantage = delta + GAMMA * LAMBDA * ~done * advantage
            advantages.insert(0, advantage)
        x, went_right, _, done, reward = map(np.concatenate, zip(*steps, strict=True))
        gae = np.concatenate(advantages)
        returns, weight = gae + x @ value, (gae - gae.mean()) / (gae.std() + 1e-8)
        old = np.where(went_right, right(x), 1 - right(x))
        for _ in range(EPOCHS):
            ratio = np.where(went_right, right(x), 1 - right(x)) / old
            inside = np.where(weight > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
            slope = weight * ratio * inside * (went_right - right(x))
            policy += LEARNING_RATE * (slope @ x) / len(x)
            value += LEARNING_RATE * ((returns - x @ value) @ x) / len(x)
        if update % 5 == 4:
            print(f"update {update + 1}: mean return {reward.sum() / done.sum():+.2f}")

    # Play greedily, one episode in each environment.
    batch, done, total = env.reset(seed=1), np.zeros(NUM_ENVS, bool), np.zeros(NUM_ENVS)
    while not done.all():
        batch = env.step(np.where(right(features(batch.current)) > 0.5, 1, -1))
        total += np.where(done, 0.0, batch.reward)
        done |= batch.done
print(f"trained policy, greedy: mean return {total.mean():.2f}, success {(total > 0).mean():.0%}")
