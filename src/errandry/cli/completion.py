"""`errandry completion`: print a script that makes a shell complete commands and options."""

import click

from errandry.cli.command import CliCommand


@click.command(cls=CliCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands and options.

    \b
    bash   eval "$(errandry completion bash)"       in ~/.bashrc
    zsh    eval "$(errandry completion zsh)"        in ~/.zshrc
    fish   errandry completion fish | source        in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is not None:
        click.echo(completion_class(ctx.find_root().command, {}, "errandry", "_ERRANDRY_COMPLETE").source())
