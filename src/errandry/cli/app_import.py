"""The app a name such as `shop:jobs` stands for, imported from the current folder or the path."""

import importlib
import os
import sys
import traceback
from difflib import get_close_matches
from types import ModuleType

import click

from errandry.api.app import Errandry


def app_at(name: str) -> Errandry:
    """The app called so; a usage error says what is wrong with the name, or where its module broke."""
    module_name, _, attribute = name.partition(":")
    module = _imported(name, module_name)
    apps = {key: value for key, value in vars(module).items() if isinstance(value, Errandry)}
    if not attribute and len(apps) == 1:
        return next(iter(apps.values()))
    if attribute in apps:
        return apps[attribute]
    close = get_close_matches(attribute, apps, 1) or sorted(apps)
    hint = f"write {module_name}:{close[0]}" if close else f"{module_name} has no Errandry app"
    if not attribute:
        raise click.UsageError(f"app {name}: which of its apps is meant? {', '.join(apps) or hint}")
    kind = type(getattr(module, attribute)).__name__ if hasattr(module, attribute) else None
    found = f"{attribute} is no Errandry app but a {kind}" if kind else f"there is no {attribute} in it"
    raise click.UsageError(f"app {name}: {found}; {hint}")


def _imported(name: str, module: str) -> ModuleType:
    if not module or module.startswith("."):
        raise click.UsageError(f"app {name}: write MODULE:NAME, such as shop:jobs")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise click.UsageError(
                f"app {name}: there is no module {error.name} in {folder} or on the path of Python"
            ) from None
        raise click.UsageError(_broken(name, error)) from error
    except (Exception, SystemExit) as error:
        raise click.UsageError(_broken(name, error)) from error


def _broken(name: str, error: BaseException) -> str:
    """Where the module broke, in the user's own code if any of that is in the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
    return f"app {name}: it cannot be imported: {type(error).__name__}: {error}{place}"
