"""How sure the model was of each token, and what else it had in mind."""

import math
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("REPRISE_URL", "http://127.0.0.1:8080") + "/v1", api_key="none")
model = client.models.list().data[0].id
reply = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "The capital of France, in one word?"}], max_tokens=8,
    temperature=0, logprobs=True, top_logprobs=3)
for token in reply.choices[0].logprobs.content:
  others = ", ".join(f"{top.token!r} {math.exp(top.logprob):.1%}" for top in token.top_logprobs[1:])
  print(f"{token.token!r:14} {math.exp(token.logprob):6.1%}   instead of {others}")
