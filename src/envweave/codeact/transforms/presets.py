"""Predefined combinations of transforms: for problems with one right answer, and for any code."""

from __future__ import annotations

from typing import Any

from envweave.codeact.transforms.rewards import CodeQualityTransform, MathProblemTransform
from envweave.codeact.transforms.safety import CodeSafetyTransform
from envweave.transforms import CompositeTransform


def create_math_env_transform(
    expected_answer: Any,
    *,
    right: float = 1.0,
    wrong: float = 0.0,
    tolerance: float = 1e-9,
    accept_text: bool = False,
    accept_printed: bool = False,
    ends: bool = False,
    penalty: float = -1.0,
) -> CompositeTransform:
    """Return transforms that reward the right answer and good code, but never unsafe code.

    The reward has the parts `math`, `quality` and `safety`. For the options see
    `MathProblemTransform` and, for `penalty`, `CodeSafetyTransform`.

    ```python
    env = create_codeact_env()
    env.transform = create_math_env_transform(expected_answer=42)
    env.reset()
    assert env.step(CodeAction(code="21 * 2")).reward > 0
    env.close()
    ```

    Raises:
        OptionError: An option is invalid.
    """
    return CompositeTransform(
        [
            MathProblemTransform(
                expected_answer,
                right=right,
                wrong=wrong,
                tolerance=tolerance,
                accept_text=accept_text,
                accept_printed=accept_printed,
                ends=ends,
            ),
            CodeQualityTransform(),
            CodeSafetyTransform(penalty),
        ]
    )


def create_safe_env_transform(
    *, penalty: float = -1.0, safe_reward: float = 0.0, quality: bool = True
) -> CompositeTransform:
    """Return transforms that never reward unsafe code and, with `quality`, reward good code.

    The reward has the parts `safety` and `quality`. For environments that reward the task
    themselves, or with a custom transform.

    Raises:
        OptionError: An option is invalid.
    """
    safety = CodeSafetyTransform(penalty, safe_reward)
    return CompositeTransform([CodeQualityTransform(), safety] if quality else [safety])
