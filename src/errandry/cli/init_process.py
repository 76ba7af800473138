"""Process 1 of a container: it starts the program as its child, passes signals on, and reaps orphans.

The kernel drops a signal to process 1 for which it has no handler, such as a SIGTERM while the program is
being imported, and leaves to it all processes whose parents have ended. Here they are no concern of the
program, which is process 2.
"""

import os
import signal

PASSED_ON = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
"""The signals that the program gets, if process 1 does."""
TYPED = frozenset({signal.SIGINT, signal.SIGQUIT})
"""The signals of keys. A terminal sends them to the program too, because it is in the same group."""
FROM_KERNEL = 0x80
"""The `si_code` of a signal that no program has sent."""


def fork_program() -> None:
    """Return in a child process. This process stays, and exits with the exit code of the child."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
    program = os.fork()
    if program == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os._exit(_serve(program))


def _serve(program: int) -> int:
    """Pass signals on and reap processes until the program ends. Returns its exit code, as a shell does."""
    while True:
        arrived = signal.sigwaitinfo(PASSED_ON | {signal.SIGCHLD})
        if arrived.si_signo == signal.SIGCHLD:
            if (code := _reap(program)) is not None:
                return code if code >= 0 else 128 - code
        elif arrived.si_signo not in TYPED or arrived.si_code != FROM_KERNEL:
            os.kill(program, arrived.si_signo)


def _reap(program: int) -> int | None:
    """Reap the processes that have ended. Returns the exit code of the program if it is one of them."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if process == 0:
            return None
        if process == program:
            return os.waitstatus_to_exitcode(status)
