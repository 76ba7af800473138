"""Imports the worker's app in a child process, and finds the task of a call in it."""

import importlib
import importlib.util
import logging
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from errandry.api.app import Errandry
from errandry.api.task import Task
from errandry.claims.failure import failure
from errandry.core.job import Failure
from errandry.store.engine.engine import Engine
from errandry.worker.children import process
from errandry.worker.children.messages import Hello, MainProgram, RunCall

log = logging.getLogger("errandry.worker")


def import_app(hello: Hello) -> Failure | None:
    """Import the modules that the worker names; the failure, if there was one."""
    sys.path[:], sys.argv[:] = hello.path, hello.argv
    Engine.refusal = process.GUARD_MESSAGE
    try:
        for name in hello.modules:
            if name == "__main__" and hello.main is not None:
                import_main(hello.main)
            else:
                importlib.import_module(name)
    except BaseException as error:  # even SystemExit, which a script may raise
        log.exception("a child process could not import the app, failing its first call")
        return failure(error)
    finally:
        Engine.refusal = None
    return None


def import_main(main: MainProgram) -> None:
    """Import the worker's program under another `__name__`, so that its `__main__` block does not run."""
    name = f"{main.package}.__errandry_main__" if main.package else "__errandry_main__"
    if main.package:
        importlib.import_module(main.package)
    loader = SourceFileLoader(name, main.file)
    spec = importlib.util.spec_from_file_location(name, main.file, loader=loader)
    if spec is None:
        raise ImportError(f"{main.file} cannot be imported")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["__main__"] = sys.modules[name] = module
    loader.exec_module(module)


def find_task(message: RunCall) -> Task[..., Any]:
    """The task of a call: the object at its handler's place in the module, or a task of an app there."""
    module = sys.modules[message.module]
    value: Any = module
    for name in message.name.split("."):
        value = getattr(value, name, None)
    if isinstance(value, Task) and value.name == message.task:
        return value
    for app in vars(module).values():
        if isinstance(app, Errandry) and message.task in app.tasks:
            return app.tasks[message.task]
    raise LookupError(
        f"a child process finds no task {message.task} as {message.name} in {message.module}: "
        "declare it with @jobs.task at the top of that module"
    )
