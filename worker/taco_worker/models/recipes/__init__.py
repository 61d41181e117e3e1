"""One module for each supported architecture."""
