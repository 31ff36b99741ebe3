"""`python -m strata` and the `strata` command are the same."""

from strata.cli import main

if __name__ == "__main__":
    main()
