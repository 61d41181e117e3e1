"""The worker's batch of sequences, and a step's input."""
