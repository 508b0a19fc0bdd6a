"""Asks what of a prompt would be computed again, and why, without running it."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("REPRISE_URL", "http://127.0.0.1:8080") + "/v1", api_key="none")


def body(time):
  return {"model": client.models.list().data[0].id, "max_tokens": 8, "messages": [
      {"role": "system", "content": f"You are brief. It is {time}. Answer in one sentence, and only if you know."},
      {"role": "user", "content": "Name three rivers."}]}


reply = client.chat.completions.create(**body("12:01"), extra_body={"cache": {"receipt": True}})
receipt = reply.model_extra["prefix_cache_receipt"]
print(f"the reply reused {receipt['hit']['reusable_tokens']} tokens: {receipt['miss'][0]['detail']}")

receipt = client.post("/cache/explain", body=body("12:02"), cast_to=object)["prefix_cache_receipt"]
print(f"a minute later it will be {receipt['hit']['reusable_tokens']}: {receipt['fork']['summary']}")
print(f"what to do: {receipt['fork']['advice']}")
