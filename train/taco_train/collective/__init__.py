"""Collectives between ranks: shared memory inside a host, TCP between hosts."""
