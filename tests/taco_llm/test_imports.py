"""Modules that commands and services must not import."""

import subprocess
import sys

import pytest

from support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.process

WITHOUT_HEAVY_PACKAGES = (
    "import sys\n"
    "class Missing:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in {'torch', 'triton', 'redis', 'huggingface_hub'}:\n"
    "            raise AssertionError(f'{name} was imported')\n"
    "sys.meta_path.insert(0, Missing())\n"
)


@pytest.mark.parametrize(
    "program",
    [
        "import taco_llm; taco_llm.SamplingParams(); taco_llm.EngineArgs(model='m')",
        "from taco_llm import ModelRegistry; ModelRegistry.get_supported_archs()",
        "from taco_llm import recipes; recipes.views.PlusOne(); recipes.PlanBuilder",
        "import taco_gateway.server",
        "import taco_scheduler.server.grpc_server",
        "import taco_license.server.server",
        "from taco_llm.cli.main import build_parser; build_parser()",
        "import taco_llm.supervisor.supervisor, taco_llm.cli.child",
        "from taco_llm.supervisor.preflight import check_before_start as check\n"
        "from taco_llm.args.engine_args import EngineArgs\n"
        "from taco_llm.args.replica_args import ReplicaArgs\n"
        "check(EngineArgs(model='demo'), ReplicaArgs())",
        "import taco_llm.bench.serving, taco_llm.bench.plot",
    ],
)
def test_runs_where_torch_redis_and_the_hub_cannot_be_imported(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HEAVY_PACKAGES + program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_can_be_imported() -> None:
    import taco_llm

    assert {name for name in taco_llm.__all__ if getattr(taco_llm, name) is None} == set()
    with pytest.raises(AttributeError):
        _ = taco_llm.bogus
