"""The command taco_train."""
