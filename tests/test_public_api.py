"""The public names, promised import paths and entry points, frozen as literals.

A new public name is added here, in the reference and in the changelog. A name removed here breaks
an import in code that is not ours.
"""

import importlib
import re
import tomllib
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import pytest

from envweave import errors

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

PUBLIC_NAMES = {
    "envweave": """
        Action AgentEnd AgentResetBatch AgentStepBatch AsyncChatEnv AsyncEnv AutoResetReady Bounds
        ChatEnv ChatWrapper CodeActEnvironment CodeAction CodeObservation CodeQualityTransform
        CodeSafetyTransform CodeState CompositeTransform ContainerProvider Decision Env EnvSpec
        EnvWeaveError Environment Episode EpisodeEnd EpisodeParent EpisodePoint
        EpisodeStatistics EpisodeStep
        ExecutionResult Fault HTTPEnvClient KubernetesProvider LocalDockerProvider LogEvent
        MathProblemTransform MultiAgentEnvironment NeedAction Observation Pool Recording
        Registry Request ResetBatch ResetResult Rollout Snapshot Spec State StepBatch StepResult
        SubprocessProvider Task TaskCompletionTransform Tasks TimeLimit TokenizerWrapper
        ToolCallRequest ToolRegistry ToolResult Transform VectorEnv WarmPool Wrapper
        __version__ agents chat codeact create_codeact_env create_fastapi_app
        create_math_env_transform create_mcp_environment
        create_safe_env_transform errors examples from_gymnasium from_pettingzoo from_verifiers
        list_envs load make make_async make_vector metrics pool register replay rescore
        rollout sandbox serve spec testing to_gymnasium to_gymnasium_vector to_pettingzoo
        to_verifiers
    """,
    "envweave.adapters.verifiers": """
        ChatAction ChatObservation ChatTool ChatToolCall TurnMessage from_verifiers to_verifiers
    """,
    "envweave.agents": """
        ChatAgent ChatModel ChatTurn ContextLengthError Message ModelError ModelReply ReplyAgent
        Tokens Truncate training_tokens
    """,
    "envweave.conversation": """
        AsyncChatEnv ChatAction ChatEnv ChatObservation ChatOptions ChatTool ChatToolCall ChatTurn
        Tokens Truncate TurnMessage training_tokens
    """,
    "envweave.codeact": """
        Attempt DockerExecutor ExactMatch Executor Grade Grader GradingError HiddenTests Judge
        NumericMatch RegexMatch Variable Weighted
    """,
    "envweave.codeact.grading": """
        ExactMatch HiddenTests Judge NumericMatch RegexMatch Weighted
    """,
    "envweave.codeact.transforms": """
        CodeQualityTransform CodeSafetyTransform MathProblemTransform TaskCompletionTransform
        UNSAFE_MODULES UNSAFE_NAMES create_math_env_transform create_safe_env_transform
    """,
    "envweave.envs": """
        GSM8KChoiceEnv GSM8KEnv
    """,
    "envweave.envs.coding_env": """
        CodeAction CodeObservation CodeState CodingEnv CodingEnvironment TerminalExecutor
    """,
    "envweave.envs.echo_env": """
        EchoAction EchoEnv EchoEnvironment EchoObservation
    """,
    "envweave.envs.gsm8k_env": """
        GSM8KAction GSM8KChoiceEnv GSM8KEnv GSM8KObservation GSM8KState
    """,
    "envweave.envs.search_env": """
        CONFIGS Corpus Document FEATURES Query RetrievalConfig Retriever SearchEnvironment
        SearchObservation make_corpus
    """,
    "envweave.examples": """
        CodeFixAction CodeFixEnv CodeFixObservation CounterAction CounterEnv CounterObservation
        GSM8KAction GSM8KChoiceEnv GSM8KEnv GSM8KObservation HarvestAction HarvestEnv
        HarvestObservation LineWorldAction LineWorldEnv LineWorldObservation TicTacToeAction
        TicTacToeEnv TicTacToeObservation
    """,
    "envweave.metrics": """
        MetricsSink episode_metrics to_jsonl to_mlflow to_tensorboard to_wandb
    """,
    "envweave.sandbox": """
        AsyncSandbox AsyncSession ExecutionResult Limits Sandbox Session Tier TierReport
        ToolCall examine
    """,
    "envweave.testing": """
        AsyncScriptedEnvironment AuditOptions AuditReport AuditedEpisode BackendConformance Check
        CheckFailedError CheckOutcome ENVIRONMENT_CHECKS EnvironmentConformance PolicyOutcome
        RandomPolicy ScriptedAction ScriptedAgents ScriptedEnvironment ScriptedObservation Subject
        Verdict audit_environment check_backend check_environment iter_checks
    """,
    "envweave.tools": """
        Tool ToolEpisode ToolOutcome ToolRegistry ToolSource current_episode
    """,
    "envweave.types": """
        AGENT Action AgentEnd AutoResetReady Blame Episode EpisodeEnd EpisodeParent
        EpisodePoint EpisodeStep Event LogEvent
        NeedAction Observation REFUSED Reason Request ResetResult Snapshot State StepResult Task
        Tasks
        ToolCallRequest ToolResult
    """,
}
ERRORS = """
    AccessError ActionError AlreadyRegisteredError BackendNotFoundError BadReturnError
    BranchError BusyError CallOrderError CapacityError ClosedError ConnectionLostError
    DeadlineError DefinitionError EnvIdError EnvNotFoundError EnvWeaveError EnvironmentFailure
    EnvironmentLostError ForkError InstallError IsolationError MissingExtraError
    NameNotFoundError OptionError PlainDataError PluginError RecordingError RecordingWarning
    RegistryError ResetFailedError ResetNeededError RolloutFailedError SandboxError SeedError
    ServerError SessionEndedError SessionGoneError SessionLostError SpecError StartupError
    StateFailedError TaskError ToolCallOpenError WireError WorkFileError
"""
ENTRY_POINTS = {
    "console_scripts": """
        envweave
    """,
    "envweave.backends": """
        docker_http http inproc kubernetes process ray
    """,
    "envweave.envs": """
        codefix-v0 coding-v0 counter-v0 echo-v0 gsm8k-choice-v0 gsm8k-v0 harvest-v0 lineworld-v0
        search-v0 tictactoe-v0
    """,
    "envweave.resolvers": """
        docker gym http https local openenv openspiel pettingzoo pkg prime rg textarena unix
        verifiers
    """,
}
# Paths that the documentation imports from, beyond the `__all__` lists above.
PROMISED_PATHS = [
    "envweave.bench.tinker_search_env",
    "envweave.envs.coding_env.server.app:app",
    "envweave.envs.echo_env.server.app:app",
    "envweave.envs.gsm8k_env.answers:exact_answer",
    "envweave.envs.gsm8k_env.answers:lenient_answer",
    "envweave.envs.gsm8k_env.environment:SingleQuestion",
    "envweave.agents:ChatModel",
    "envweave.examples.code_agent:ChatCodeAgent",
    "envweave.examples.counter:CounterAction",
    "envweave.examples.counter:CounterEnv",
    "envweave.examples.counter:CounterObservation",
    "envweave.examples.train_codefix_pg:main",
    "envweave.examples.train_gsm8k_tinker_rl:main",
    "envweave.examples.train_lineworld_pg:main",
    "envweave.server.options:ServerOptions",
    "envweave.tools.mcp:McpServers",
]
REFERENCED = sorted(
    {
        path
        for page in (ROOT / "docs/reference").glob("*.md")
        for path in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
)
DECLARED = {
    "console_scripts": PYPROJECT["scripts"],
    **PYPROJECT["entry-points"],
}


@pytest.mark.parametrize("package", PUBLIC_NAMES)
def test_a_documented_package_exports_exactly_its_frozen_names(package: str) -> None:
    module = importlib.import_module(package)

    assert sorted(module.__all__) == PUBLIC_NAMES[package].split()


@pytest.mark.parametrize("package", PUBLIC_NAMES)
def test_every_exported_name_resolves(package: str) -> None:
    module = importlib.import_module(package)

    missing = [name for name in module.__all__ if not hasattr(module, name)]

    assert missing == []


def test_the_error_classes_are_frozen() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == "envweave.errors"
    }

    assert sorted(defined) == ERRORS.split()


@pytest.mark.parametrize("path", PROMISED_PATHS)
def test_a_promised_path_resolves(path: str) -> None:
    resolve_name(path)


# Modules with classes that inherit from another library's, which is not among the development ones.
SUBCLASSES_OF = {
    "envweave.trainers.art": "art",
    "envweave.trainers.gem": "gem",
    "envweave.trainers.skyrl": "skyrl_gym",
}


@pytest.mark.parametrize("path", REFERENCED)
def test_a_path_in_the_reference_resolves(path: str) -> None:
    module = path.rpartition(".")[0]
    package = SUBCLASSES_OF.get(module)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"{module} needs {package}; its tests have it")  # tests/trainers

    resolve_name(path)


def test_the_entry_point_groups_and_names_are_frozen() -> None:
    declared = {group: sorted(names) for group, names in DECLARED.items()}

    assert declared == {group: names.split() for group, names in ENTRY_POINTS.items()}


@pytest.mark.parametrize("group", DECLARED)
def test_every_entry_point_loads(group: str) -> None:
    for name, value in DECLARED[group].items():
        if name != "ray" or find_spec("ray") is not None:  # not among the development packages
            EntryPoint(name, value, group).load()
