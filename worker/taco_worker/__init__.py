"""The worker: executes step plans of the scheduler with one model on one device."""
