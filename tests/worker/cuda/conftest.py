"""Tests that need a GPU; `bench/gpu/run.sh` runs them. Elsewhere nothing is collected."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
