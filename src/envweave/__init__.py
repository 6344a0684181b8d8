"""Write an RL environment once. Run it anywhere. Trust every reward.

Nothing is imported until it is used: `import envweave` alone loads no dependency.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from envweave import agents as agents
    from envweave import codeact as codeact
    from envweave import errors as errors
    from envweave import examples as examples
    from envweave import metrics as metrics
    from envweave import sandbox as sandbox
    from envweave import testing as testing
    from envweave.adapters.gymnasium import from_gymnasium as from_gymnasium
    from envweave.adapters.gymnasium import to_gymnasium as to_gymnasium
    from envweave.adapters.gymnasium import to_gymnasium_vector as to_gymnasium_vector
    from envweave.adapters.pettingzoo import from_pettingzoo as from_pettingzoo
    from envweave.adapters.pettingzoo import to_pettingzoo as to_pettingzoo
    from envweave.adapters.verifiers.environments import from_verifiers as from_verifiers
    from envweave.adapters.verifiers.environments import to_verifiers as to_verifiers
    from envweave.api import AsyncEnv as AsyncEnv
    from envweave.api import Env as Env
    from envweave.api import list_envs as list_envs
    from envweave.api import register as register
    from envweave.api import spec as spec
    from envweave.api.chat import chat as chat
    from envweave.api.make import make as make
    from envweave.api.make import make_async as make_async
    from envweave.api.make import make_vector as make_vector
    from envweave.api.serving import create_fastapi_app as create_fastapi_app
    from envweave.api.serving import serve as serve
    from envweave.client.http_client import HTTPEnvClient as HTTPEnvClient
    from envweave.codeact.environment import CodeActEnvironment as CodeActEnvironment
    from envweave.codeact.factory import create_codeact_env as create_codeact_env
    from envweave.codeact.factory import create_mcp_environment as create_mcp_environment
    from envweave.codeact.models import CodeAction as CodeAction
    from envweave.codeact.models import CodeObservation as CodeObservation
    from envweave.codeact.models import CodeState as CodeState
    from envweave.codeact.transforms import CodeQualityTransform as CodeQualityTransform
    from envweave.codeact.transforms import CodeSafetyTransform as CodeSafetyTransform
    from envweave.codeact.transforms import MathProblemTransform as MathProblemTransform
    from envweave.codeact.transforms import TaskCompletionTransform as TaskCompletionTransform
    from envweave.codeact.transforms import create_math_env_transform as create_math_env_transform
    from envweave.codeact.transforms import create_safe_env_transform as create_safe_env_transform
    from envweave.codec import Bounds as Bounds
    from envweave.codec import Spec as Spec
    from envweave.conversation import AsyncChatEnv as AsyncChatEnv
    from envweave.conversation import ChatEnv as ChatEnv
    from envweave.environment import Environment as Environment
    from envweave.environment import MultiAgentEnvironment as MultiAgentEnvironment
    from envweave.errors import EnvWeaveError as EnvWeaveError
    from envweave.providers import ContainerProvider as ContainerProvider
    from envweave.providers import SubprocessProvider as SubprocessProvider
    from envweave.providers.docker.provider import LocalDockerProvider as LocalDockerProvider
    from envweave.providers.docker.warm_pool import WarmPool as WarmPool
    from envweave.providers.kubernetes.provider import KubernetesProvider as KubernetesProvider
    from envweave.recording import Recording as Recording
    from envweave.registry import EnvSpec as EnvSpec
    from envweave.registry import Registry as Registry
    from envweave.rollouts import Decision as Decision
    from envweave.rollouts import Fault as Fault
    from envweave.rollouts import Pool as Pool
    from envweave.rollouts import Rollout as Rollout
    from envweave.rollouts.pool import pool as pool
    from envweave.rollouts.recorded_forks import load as load
    from envweave.rollouts.replay import replay as replay
    from envweave.rollouts.rescore import rescore as rescore
    from envweave.rollouts.rollout import rollout as rollout
    from envweave.sandbox.execution import ExecutionResult as ExecutionResult
    from envweave.tools import ToolRegistry as ToolRegistry
    from envweave.transforms import CompositeTransform as CompositeTransform
    from envweave.transforms import Transform as Transform
    from envweave.types import Action as Action
    from envweave.types import AgentEnd as AgentEnd
    from envweave.types import AutoResetReady as AutoResetReady
    from envweave.types import Episode as Episode
    from envweave.types import EpisodeEnd as EpisodeEnd
    from envweave.types import EpisodeParent as EpisodeParent
    from envweave.types import EpisodePoint as EpisodePoint
    from envweave.types import EpisodeStep as EpisodeStep
    from envweave.types import LogEvent as LogEvent
    from envweave.types import NeedAction as NeedAction
    from envweave.types import Observation as Observation
    from envweave.types import Request as Request
    from envweave.types import ResetResult as ResetResult
    from envweave.types import Snapshot as Snapshot
    from envweave.types import State as State
    from envweave.types import StepResult as StepResult
    from envweave.types import Task as Task
    from envweave.types import Tasks as Tasks
    from envweave.types import ToolCallRequest as ToolCallRequest
    from envweave.types import ToolResult as ToolResult
    from envweave.vector import AgentResetBatch as AgentResetBatch
    from envweave.vector import AgentStepBatch as AgentStepBatch
    from envweave.vector import ResetBatch as ResetBatch
    from envweave.vector import StepBatch as StepBatch
    from envweave.vector import VectorEnv as VectorEnv
    from envweave.wrappers import ChatWrapper as ChatWrapper
    from envweave.wrappers import EpisodeStatistics as EpisodeStatistics
    from envweave.wrappers import TimeLimit as TimeLimit
    from envweave.wrappers import TokenizerWrapper as TokenizerWrapper
    from envweave.wrappers import Wrapper as Wrapper

_HOMES = {
    "adapters.gymnasium": ["from_gymnasium", "to_gymnasium", "to_gymnasium_vector"],
    "adapters.pettingzoo": ["from_pettingzoo", "to_pettingzoo"],
    "adapters.verifiers": ["from_verifiers", "to_verifiers"],
    "api": [
        "AsyncEnv",
        "Env",
        "list_envs",
        "make",
        "make_async",
        "make_vector",
        "register",
        "spec",
    ],
    "api.chat": ["chat"],
    "api.serving": ["create_fastapi_app", "serve"],
    "client.http_client": ["HTTPEnvClient"],
    "codeact.environment": ["CodeActEnvironment"],
    "codeact.factory": ["create_codeact_env", "create_mcp_environment"],
    "codeact.models": ["CodeAction", "CodeObservation", "CodeState"],
    "codeact.transforms": [
        "CodeQualityTransform",
        "CodeSafetyTransform",
        "MathProblemTransform",
        "TaskCompletionTransform",
        "create_math_env_transform",
        "create_safe_env_transform",
    ],
    "codec": ["Bounds", "Spec"],
    "conversation": ["AsyncChatEnv", "ChatEnv"],
    "environment": ["Environment", "MultiAgentEnvironment"],
    "errors": ["EnvWeaveError"],
    "providers": ["ContainerProvider", "SubprocessProvider"],
    "providers.docker.provider": ["LocalDockerProvider"],
    "providers.docker.warm_pool": ["WarmPool"],
    "providers.kubernetes.provider": ["KubernetesProvider"],
    "recording": ["Recording"],
    "registry": ["EnvSpec", "Registry"],
    "rollouts": ["Decision", "Fault", "Pool", "Rollout", "pool", "replay", "rescore", "rollout"],
    "rollouts.recorded_forks": ["load"],
    "sandbox.execution": ["ExecutionResult"],
    "tools": ["ToolRegistry"],
    "transforms": ["CompositeTransform", "Transform"],
    "types": [
        "Action",
        "AgentEnd",
        "AutoResetReady",
        "Episode",
        "EpisodeEnd",
        "EpisodeParent",
        "EpisodePoint",
        "EpisodeStep",
        "LogEvent",
        "NeedAction",
        "Observation",
        "Request",
        "ResetResult",
        "Snapshot",
        "State",
        "StepResult",
        "Task",
        "Tasks",
        "ToolCallRequest",
        "ToolResult",
    ],
    "vector": ["AgentResetBatch", "AgentStepBatch", "ResetBatch", "StepBatch", "VectorEnv"],
    "wrappers": ["ChatWrapper", "EpisodeStatistics", "TimeLimit", "TokenizerWrapper", "Wrapper"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_SUBPACKAGES = ["agents", "codeact", "errors", "examples", "metrics", "sandbox", "testing"]

__all__ = sorted(["__version__", *_HOME_OF, *_SUBPACKAGES])


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"envweave.{_HOME_OF[name]}"), name)
    elif name in _SUBPACKAGES:
        value = importlib.import_module(f"envweave.{name}")
    else:
        raise AttributeError(f"module 'envweave' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
