"""Words as they come, and the usage in the last chunk."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("REPRISE_URL", "http://127.0.0.1:8080") + "/v1", api_key="none")
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "Why is the sky blue?"}], max_tokens=64, temperature=0,
    stream=True, stream_options={"include_usage": True})
for chunk in stream:
  for choice in chunk.choices:
    print(choice.delta.content or "", end="", flush=True)
  if chunk.usage:
    print(f"\n[{chunk.usage.completion_tokens} tokens after {chunk.usage.prompt_tokens}]")
