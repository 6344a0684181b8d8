"""`envweave train`: the training programs of the examples."""

import typer

app = typer.Typer(help="Train a policy on one of the examples.")

# The program parses its own options, so that both ways to start it take the same ones.
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.callback(invoke_without_command=True)
def _train(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("lineworld", context_settings=_PASS_ON, add_help_option=False)
def train_lineworld(context: typer.Context) -> int:
    """Train on LineWorld by policy gradient, with numpy only; takes seconds."""
    from envweave.examples.train_lineworld_pg import main

    return main(context.args, prog="envweave train lineworld")


@app.command("codefix", context_settings=_PASS_ON, add_help_option=False)
def train_codefix(context: typer.Context) -> int:
    """Train a tiny transformer on CodeFix from scratch; needs torch and takes a minute."""
    from envweave.examples.train_codefix_pg import main

    return main(context.args, prog="envweave train codefix")


@app.command("selfplay-tictactoe", context_settings=_PASS_ON, add_help_option=False)
def train_selfplay_tictactoe(context: typer.Context) -> int:
    """Train two agents on tic-tac-toe by self-play, with numpy only; takes a minute."""
    from envweave.examples.train_selfplay_tictactoe import main

    return main(context.args, prog="envweave train selfplay-tictactoe")


@app.command("ppo-lineworld", context_settings=_PASS_ON, add_help_option=False)
def train_ppo_lineworld(context: typer.Context) -> int:
    """Train on LineWorld with PPO; needs stable-baselines3 and takes seconds."""
    from envweave.examples.train_ppo import main

    return main(context.args, task="lineworld", prog="envweave train ppo-lineworld")


@app.command("ppo-cartpole", context_settings=_PASS_ON, add_help_option=False)
def train_ppo_cartpole(context: typer.Context) -> int:
    """Train on CartPole with PPO; needs stable-baselines3 and takes minutes."""
    from envweave.examples.train_ppo import main

    return main(context.args, task="cartpole", prog="envweave train ppo-cartpole")


@app.command("gsm8k", context_settings=_PASS_ON, add_help_option=False)
def train_gsm8k(context: typer.Context) -> int:
    """Train a language model on GSM8K through Tinker; needs $TINKER_API_KEY."""
    from envweave.examples.train_gsm8k_tinker_rl import main

    return main(context.args, prog="envweave train gsm8k")


@app.command("trafficlight-trl", context_settings=_PASS_ON, add_help_option=False)
def train_trafficlight(context: typer.Context) -> int:
    """Train a tiny language model with TRL's GRPOTrainer; needs trl and takes two minutes."""
    from envweave.examples.train_trafficlight_trl import main

    return main(context.args, prog="envweave train trafficlight-trl")


@app.command("trafficlight-tinker", context_settings=_PASS_ON, add_help_option=False)
def train_trafficlight_tinker(context: typer.Context) -> int:
    """Train a language model by Tinker's cookbook; needs $TINKER_API_KEY."""
    from envweave.examples.train_trafficlight_tinker import main

    return main(context.args, prog="envweave train trafficlight-tinker")
