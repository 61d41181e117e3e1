"""Asks a server one question with OpenAI's client: python examples/chat.py"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
answer = client.chat.completions.create(
    model="demo",
    messages=[{"role": "user", "content": "What does os.path.join do?"}],
    temperature=0,
)
print(answer.choices[0].message.content)
