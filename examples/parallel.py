"""Sends many requests at once; the server batches them: python examples/parallel.py"""

import asyncio
import os
import time

from openai import AsyncOpenAI

FUNCTIONS = ("json.dumps", "json.loads", "os.path.join", "len", "print", "sorted", "zip", "open")


async def main() -> None:
    async with AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    ) as client:

        async def ask(function: str) -> str:
            answer = await client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": f"What does {function} do?"}],
                temperature=0,
            )
            return answer.choices[0].message.content or ""

        start = time.perf_counter()
        answers = await asyncio.gather(*(ask(function) for function in FUNCTIONS))
        seconds = time.perf_counter() - start
    print(*answers, sep="\n")
    print(f"{len(answers)} answers in {seconds:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
