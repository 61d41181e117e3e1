"""Ways to store numbers and matrices that several checkpoint formats share."""
