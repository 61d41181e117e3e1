"""Shows that a seed makes sampled text repeatable: python examples/repeatable.py

The text depends on the request and its seed, not on the requests that run beside it.
"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)


def sample(seed: int) -> str:
    completion = client.completions.create(
        model="demo", prompt="import os\n", temperature=1.0, max_tokens=24, seed=seed
    )
    return completion.choices[0].text


first, again, other = sample(7), sample(7), sample(8)
print(f"seed 7:       {first!r}")
print(f"seed 7 again: {again!r}")
print(f"seed 8:       {other!r}")
print("equal" if first == again else "different")
