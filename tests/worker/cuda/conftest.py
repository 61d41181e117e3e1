"""What only a GPU can show; `bench/gpu/run.sh` runs it. Elsewhere there is nothing to collect."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
