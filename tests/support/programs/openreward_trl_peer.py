"""TRL's `OpenRewardSpec` on a server of ours. Run in the virtual environment with TRL.

usage: openreward_trl_peer.py URL PACKAGES

PACKAGES is the folder with the client of the Open Reward Standard, of another virtual environment.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")


def main(url: str, packages: str) -> dict[str, Any]:
    sys.path.append(packages)
    os.environ["OPENREWARD_SESSION_URL"] = url  # else the client calls sessions.HOST
    from trl.experimental.openreward import OpenRewardSpec

    spec = OpenRewardSpec(url, num_tasks=4)
    rows = list(spec.train_dataset)
    environments = [spec.environment_factory() for _ in range(3)]
    kind = type(environments[0])
    names = [one for one in vars(kind) if not one.startswith("_")]
    prompts = [env.reset(**rows[3]) for env in environments]
    first, failed, _ = environments
    outputs = [getattr(first, names[0])(delta=delta) for delta in (1, 2)]
    refused = getattr(failed, names[0])(delta="x")
    rewards = spec.reward_funcs(environments)
    for env in environments:
        env._close()
    return {
        "rows": rows,
        "tools": names,
        "doc": getattr(kind, names[0]).__doc__,
        "prompts": prompts,
        "outputs": outputs,
        "refused": refused,
        "rewards": rewards,
        "finished": [env.finished for env in environments],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the client's threads wait for its platform
