"""The entry point of `errandry` and of `python -m errandry`.

It imports as little as possible before it can handle signals.
"""

import os


def main() -> None:
    if os.getpid() == 1:
        from errandry.cli.init_process import fork_program

        fork_program()
    import errandry.cli.main

    errandry.cli.main.main()


if __name__ == "__main__":
    main()
