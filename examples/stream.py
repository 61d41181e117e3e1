"""Prints an answer while it is generated, then its token counts: python examples/stream.py"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
stream = client.chat.completions.create(
    model="demo",
    messages=[{"role": "user", "content": "What does json.dumps do?"}],
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:  # the last chunk has no choices
        print(f"\n{chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out")
