"""`python -m fedsat`: the same program as `fedsat`."""

from fedsat.cli import main

main()
