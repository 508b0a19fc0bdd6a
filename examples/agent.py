"""An agent: the model may call functions as often as it likes, up to a limit, until it has its answer."""

import json
import os
import sys

from openai import OpenAI

STEPS_MAX = 5
STOCK = {"apples": 12, "pears": 0, "plums": 7}

client = OpenAI(base_url=os.environ.get("REPRISE_URL", "http://127.0.0.1:8080") + "/v1", api_key="none")
model = client.models.list().data[0].id


def stock(fruit):
  return STOCK.get(fruit, "we do not have that fruit")


def tool(name, description, **properties):
  return {"type": "function", "function": {"name": name, "description": description, "parameters": {
      "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}


FUNCTIONS = {"stock": stock}
TOOLS = [tool("stock", "How many pieces of a fruit are in stock.", fruit={"enum": list(STOCK)})]

messages = [{"role": "system", "content": "You keep a fruit shop. Look up the stock before you answer."},
            {"role": "user", "content": " ".join(sys.argv[1:]) or "How many plums do we have?"}]
for step in range(STEPS_MAX):
  # The first step must look something up, the last one must answer; in between the model decides.
  choice = "required" if step == 0 else "none" if step == STEPS_MAX - 1 else "auto"
  reply = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice=choice,
                                         temperature=0, max_tokens=256)
  message = reply.choices[0].message
  messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
  if not message.tool_calls:
    print(message.content)
    break
  for call in message.tool_calls:
    result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
    print(f"{call.function.name}({call.function.arguments}) = {result}", file=sys.stderr)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
