"""Asks two questions in one conversation and shows what the prefix cache saved.

python examples/conversation.py
"""

import os

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
messages: list[ChatCompletionMessageParam] = []
for question in ("What does json.dumps do?", "Give an example."):
    messages.append({"role": "user", "content": question})
    answer = client.chat.completions.create(model="demo", messages=messages, temperature=0)
    text = answer.choices[0].message.content
    messages.append({"role": "assistant", "content": text})
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details else 0
    print(f"{question} ({answer.usage.prompt_tokens} tokens in, {cached} from the cache)\n{text}\n")
