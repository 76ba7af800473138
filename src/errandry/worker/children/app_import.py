"""The app in a child process: imported as its worker has it, and the task of a job found in it again."""

import importlib
import importlib.util
import logging
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from errandry.api.app import Errandry
from errandry.api.task import Task
from errandry.core.job import Failure
from errandry.store.engine.engine import Engine
from errandry.worker.attempt import failure
from errandry.worker.children import process
from errandry.worker.children.messages import Hello, MainProgram, RunCall

log = logging.getLogger("errandry.worker")


def load(hello: Hello) -> Failure | None:
    """Import what the worker has; what went wrong, if anything did."""
    sys.path[:], sys.argv[:] = hello.path, hello.argv
    Engine.refusal = process.GUARD
    try:
        for name in hello.modules:
            if name == "__main__" and hello.main is not None:
                load_main(hello.main)
            else:
                importlib.import_module(name)
    except BaseException as error:  # a script may even exit
        log.exception("a process for handlers could not import what it needs")
        return failure(error)
    finally:
        Engine.refusal = None
    return None


def load_main(main: MainProgram) -> None:
    """The worker's program under another name, so that what it guards with `__name__` does not run again."""
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


def found(do: RunCall) -> Task[..., Any]:
    """The task of a call: what stands where its handler was declared, or what an app there knows by name."""
    module = sys.modules[do.module]
    thing: Any = module
    for name in do.name.split("."):
        thing = getattr(thing, name, None)
    if isinstance(thing, Task) and thing.name == do.task:
        return thing
    for app in vars(module).values():
        if isinstance(app, Errandry) and do.task in app.tasks:
            return app.tasks[do.task]
    raise LookupError(
        f"a process of its own finds no task {do.task} as {do.name} in {do.module}: "
        "declare it with @jobs.task at the top of that module"
    )
