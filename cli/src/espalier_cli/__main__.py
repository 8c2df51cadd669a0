"""`python -m espalier_cli` is `espalier`."""

from espalier_cli.main import main

main()
