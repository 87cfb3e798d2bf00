"""`python -m tfdeploy`."""

from tfdeploy.cli import main

main()
