"""`python -m cli`: how `baton up` starts its services, whatever is first in PATH."""

from cli.main import main

main()
