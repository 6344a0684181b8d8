"""GSM8K, math word problems: answered with a number, or by one of four choices."""

from envweave.envs.gsm8k_env.environment import (
    GSM8KAction,
    GSM8KChoiceEnv,
    GSM8KEnv,
    GSM8KObservation,
    GSM8KState,
)

__all__ = ["GSM8KAction", "GSM8KChoiceEnv", "GSM8KEnv", "GSM8KObservation", "GSM8KState"]
