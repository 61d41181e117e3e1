"""`python -m taco_train.cli` is the command `taco_train`."""

from taco_train.cli.main import main

main()
