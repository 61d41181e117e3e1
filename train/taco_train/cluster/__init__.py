"""Who the ranks are, on which hosts, and how fast the links between them are."""
