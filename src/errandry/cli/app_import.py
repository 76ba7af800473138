"""Import an app by a name such as `shop:jobs`, from the current folder or `sys.path`."""

import importlib
import os
import sys
import traceback
from difflib import get_close_matches
from types import ModuleType

import click

from errandry.api.app import Errandry
from errandry.errors import InvalidValue
from errandry.store.url import without_password


def import_app(name: str) -> Errandry:
    """Return the app; a usage error says what is wrong with the name, or where the import failed."""
    module_name, _, attribute = name.partition(":")
    module = _import_module(name, module_name)
    apps = {key: value for key, value in vars(module).items() if isinstance(value, Errandry)}
    if not attribute and len(apps) == 1:
        return next(iter(apps.values()))
    if attribute in apps:
        return apps[attribute]
    close = get_close_matches(attribute, apps, 1) or sorted(apps)
    hint = f"write {module_name}:{close[0]}" if close else f"{module_name} has no Errandry app"
    if not attribute:
        choice = f"it has several apps: {', '.join(apps)}" if apps else hint
        raise click.UsageError(f"app {name}: {choice}")
    kind = type(getattr(module, attribute)).__name__ if hasattr(module, attribute) else None
    problem = f"{attribute} is not an Errandry app but a {kind}" if kind else f"it has no {attribute}"
    raise click.UsageError(f"app {name}: {problem}; {hint}")


def _import_module(name: str, module: str) -> ModuleType:
    if not module or module.startswith("."):
        raise click.UsageError(f"app {name}: write MODULE:NAME, such as shop:jobs")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            problem = f"there is no module {error.name} in {folder} or on Python's path"
            raise click.UsageError(f"app {name}: {problem}{_module_hint(name, module)}") from None
        raise click.UsageError(_import_error(name, error)) from error
    except InvalidValue as error:
        if error.name == "url" and error.value == without_password(os.environ.get("ERRANDRY_URL", "")):
            raise  # the app names no store: this URL is from an option or the environment
        raise click.UsageError(_import_error(name, error)) from error
    except (Exception, SystemExit) as error:
        raise click.UsageError(_import_error(name, error)) from error


def _module_hint(name: str, module: str) -> str:
    """How to write a name that has a file instead of a module."""
    right = module.removesuffix(".py").removeprefix("./").replace(os.sep, ".")
    return "" if right == module else f"; write {right}{name.removeprefix(module)}"


def _import_error(name: str, error: BaseException) -> str:
    """The error and its place: the last line of the user's own code in the traceback, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    text = str(error)
    if isinstance(error, SyntaxError):  # its text has the place, too, but without the folder
        text, place = error.msg, f" ({error.filename}, line {error.lineno})"
    return f"app {name}: the import failed: {type(error).__name__}: {text}{place}"
