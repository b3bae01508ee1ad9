"""`python -m fedsat`."""

from fedsat.cli import main

main()
