"""`horovodrun`: starts the ranks of a job, on this host and by ssh on others."""
