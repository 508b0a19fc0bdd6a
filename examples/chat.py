"""A conversation of two turns; the second reuses what was computed for the first."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("REPRISE_URL", "http://127.0.0.1:8080") + "/v1", api_key="none")
model = client.models.list().data[0].id
messages = [{"role": "system", "content": "You are brief."}]

for question in ("Name three rivers.", "Which of them is the longest?"):
  messages.append({"role": "user", "content": question})
  reply = client.chat.completions.create(model=model, messages=messages, max_tokens=64, temperature=0)
  messages.append({"role": "assistant", "content": reply.choices[0].message.content})
  usage = reply.usage
  print(f"> {question}\n{messages[-1]['content']}")
  print(f"[{usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} prompt tokens reused]\n")
