"""The gateway's answers on the admin listener: readiness, metrics and drain."""

from starlette.applications import Starlette

from taco_common.admin import Readiness, create_admin_app
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.gateway import Gateway
from taco_gateway.routes.metrics import exposition


def gateway_admin_app(gateway: Gateway) -> Starlette:
    """`GET /livez`, `GET /readyz`, `POST /drain` and `GET /metrics` of a gateway."""

    def drain() -> int:
        gateway.draining = True
        return gateway.metrics.num_active

    return create_admin_app(ReadinessCheck(gateway).check, lambda: exposition(gateway), drain)


class ReadinessCheck:
    """Whether a load balancer should send connections to this gateway.

    A problem that all gateways share must not take all of them out of the load balancer: clients
    would get a refused connection instead of an answer, such as that there is no license. So a
    gateway that was ready once stays ready while its own side works, and a gateway that starts
    without a license is ready to report that. `min_ready_workers` above 1 asks for more.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._was_ready = False

    async def check(self) -> Readiness:
        if reason := await self._own_problem():
            return Readiness(False, reason)
        problem = self._common_problem()
        self._was_ready |= not problem or bool(self._gateway.license_problem)
        return Readiness(self._was_ready, problem)

    async def _own_problem(self) -> str:
        gateway = self._gateway
        if gateway.draining:
            return "draining"
        if not gateway.keys.is_loaded:
            return "the API keys have not been loaded yet"
        wanted = gateway.config.min_ready_workers
        if wanted == 1:
            return ""
        try:
            num_workers = (await gateway.client.stats()).num_workers
        except EngineError:
            return "the scheduler does not answer"
        return "" if num_workers >= wanted else f"{num_workers} of {wanted} workers are attached"

    def _common_problem(self) -> str:
        if problem := self._gateway.license_problem:
            return f"no worker has a license: {problem}"
        return "" if self._gateway.ready else "no worker serves the model"
