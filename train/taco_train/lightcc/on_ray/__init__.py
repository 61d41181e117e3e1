"""Jobs whose ranks are actors of a Ray cluster."""
