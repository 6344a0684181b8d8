"""The root of the command: its options, its commands, and how errors are printed."""

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from envweave import __version__
from envweave.cli import output
from envweave.cli.commands import train
from envweave.cli.commands.audit import audit_command
from envweave.cli.commands.bench import bench_command
from envweave.cli.commands.build.command import build_command
from envweave.cli.commands.check import check_command
from envweave.cli.commands.deploy import deploy_command
from envweave.cli.commands.doctor import doctor_command
from envweave.cli.commands.info import info_command
from envweave.cli.commands.list import list_command
from envweave.cli.commands.new.command import new_command
from envweave.cli.commands.play.command import play_command
from envweave.cli.commands.recordings import export_command, replay_command, rescore_command
from envweave.cli.commands.run import run_command
from envweave.cli.commands.serve import serve_command
from envweave.cli.commands.view import view_command
from envweave.errors import EnvironmentFailure, EnvWeaveError, format_error

_HELP = """Make, inspect, check and run environments for reinforcement learning.

An environment has an ID: a name registered by an installed package (counter-v0), or a scheme and
a location (gym://CartPole-v1, pkg://my_module:MyEnv). `envweave list` shows the names.
"""

_EPILOG = """[bold]Examples[/bold]

envweave list

envweave new my-env --kind code

envweave info counter-v0

envweave check pkg://my_module:MyEnv

envweave audit gsm8k-v0

envweave run gym://CartPole-v1 --episodes 20 --seed 0

envweave run counter-v0 --record runs/x

envweave replay runs/x --against process
envweave play tictactoe-v0

envweave serve counter-v0 --port 8000

envweave build ./my_env -t my-env:latest

envweave bench gym://CartPole-v1 --num-envs 64

envweave train lineworld --num-envs 16 --episodes 400

Every command takes --json and --help.
"""

# Newer releases of typer bundle their own click, so the base of its errors is looked up here.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


app = typer.Typer(
    name="envweave",
    help=output.reflow(_HELP),
    epilog=_EPILOG,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


_COMMANDS: dict[str, dict[str, Callable[..., Any]]] = {
    "Use": {
        "list": list_command,
        "info": info_command,
        "run": run_command,
        "play": play_command,
        "view": view_command,
    },
    "Recordings": {
        "replay": replay_command,
        "rescore": rescore_command,
        "export": export_command,
    },
    "Build": {
        "new": new_command,
        "check": check_command,
        "audit": audit_command,
        "bench": bench_command,
        "build": build_command,
    },
    "Operate": {
        "serve": serve_command,
        "deploy": deploy_command,
        "doctor": doctor_command,
    },
}
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        _help = output.reflow(_command.__doc__ or "")
        app.command(_name, help=_help, rich_help_panel=_panel)(_command)
app.add_typer(train.app, name="train", rich_help_panel="Use")


@dataclass
class Settings:
    """The options of the root command.

    Attributes:
        debug: Whether errors are shown with their traceback.
        log: Handler of envweave's own log. A failed episode is logged with its traceback, while
            commands print a short message, so without `debug` only critical records pass.
    """

    debug: bool = False
    log: logging.Handler = field(default_factory=logging.StreamHandler)


def _show_version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"envweave {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", metavar="", help="Show tracebacks and log records.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - handled by its callback
        bool,
        typer.Option(
            "--version",
            metavar="",
            help="Show the version and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    settings = context.ensure_object(Settings)
    settings.debug = debug
    settings.log.setLevel(logging.DEBUG if debug else logging.CRITICAL)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    _find_modules_here()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a replacement stream without an encoding
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    settings = Settings()
    try:
        with _logged_to(settings.log):
            code = _invoke(arguments, settings)
        sys.stdout.flush()
    except BrokenPipeError:
        return _discard_output()
    except SystemExit as stop:  # typer and rich exit this way when the pipe is closed
        return stop.code if isinstance(stop.code, int) else 1
    return code


def _invoke(arguments: Sequence[str], settings: Settings) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(
            list(arguments), prog_name="envweave", standalone_mode=False, obj=settings
        )
    except _ClickError as error:
        return _print_usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        raise
    except EnvWeaveError as error:
        if settings.debug:
            raise
        output.error_line(str(error))
        return 1 if isinstance(error, EnvironmentFailure) else 2
    except Exception as error:
        if settings.debug:
            raise
        output.error_line(
            f"Unexpected {format_error(error)}. For the traceback, run: "
            f"envweave --debug {shlex.join(arguments)} (if it ends in envweave, please report it)"
        )
        return 1
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _logged_to(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("envweave")
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


def _print_usage_error(error: Exception) -> int:
    message = error.format_message()  # type: ignore[attr-defined] # every click error has it
    output.error_line(message)
    context = getattr(error, "ctx", None)
    path = "envweave" if context is None else context.command_path
    output.console(stderr=True).print(f"See `{path} --help`.", soft_wrap=True)
    return 2


def _find_modules_here() -> None:
    """Let `pkg://` import modules of the current directory, as `python -m` does."""
    with contextlib.suppress(FileNotFoundError):  # the current directory was removed
        here = os.getcwd()  # noqa: PTH109 - as the interpreter writes it
        if not sys.flags.safe_path and here not in sys.path[:1]:
            sys.path.insert(0, here)


def _discard_output() -> int:
    """Discard what is still buffered, so that the interpreter exits without an error."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
    return 1
