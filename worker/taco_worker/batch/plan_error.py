"""The error of a plan that the batch rejects."""


class PlanError(ValueError):
    """A plan that contradicts the batch. The step fails before anything runs."""
