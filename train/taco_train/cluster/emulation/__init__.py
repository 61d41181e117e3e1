"""Hosts and links on one machine: network namespaces, shaped links, and ranks inside them."""
