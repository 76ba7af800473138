"""`python -m errandry` runs the command line, also if its script is not on the path."""

from errandry.cli.main import main

if __name__ == "__main__":
    main()
