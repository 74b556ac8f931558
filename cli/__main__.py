"""`python -m cli`: the `baton` command of this very interpreter, with which `baton up` starts its services."""

from cli.main import main

main()
