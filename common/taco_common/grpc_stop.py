"""Stops a gRPC server together with the asyncio tasks of its calls."""

import asyncio

import grpc.aio

# The name that gRPC 1.85 gives to the task of a call.
_CALL_TASK = "rpc_task"
# Seconds that tasks of calls may still run after their server has stopped.
_TASK_SECONDS = 1.0


async def stop_server(server: grpc.aio.Server, grace: float | None) -> None:
    """Ends all calls, and waits for their tasks.

    `Server.stop` returns when the core of gRPC has no calls, and their tasks may have a step left.
    If `asyncio.run` ends then, it cancels them, and gRPC prints a traceback.

    Args:
        server: calls of others in this event loop hold the stop for up to a second.
        grace: seconds that calls have to end by themselves; None: they are cancelled at once.
    """
    await server.stop(grace)
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == _CALL_TASK]
    if tasks:
        await asyncio.wait(tasks, timeout=_TASK_SECONDS)
