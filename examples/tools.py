"""A function call: the model asks for it, the program runs it, the model reads the result."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("REPRISE_URL", "http://127.0.0.1:8080") + "/v1", api_key="none")
model = client.models.list().data[0].id


def temperature(city):
  return {"city": city, "celsius": {"Paris": 18, "Oslo": 7}.get(city, 12)}


tools = [{"type": "function", "function": {
    "name": "temperature", "description": "The temperature in a city now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                   "additionalProperties": False}}}]
messages = [{"role": "user", "content": "How warm is it in Paris?"}]
first = client.chat.completions.create(model=model, messages=messages, tools=tools, tool_choice="required", temperature=0,
                                       max_tokens=128)
call = first.choices[0].message.tool_calls[0]
arguments = json.loads(call.function.arguments)
print(f"the model calls {call.function.name}({arguments})")

messages.append({"role": "assistant", "content": "", "tool_calls": [call.model_dump()]})
messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(temperature(**arguments))})
second = client.chat.completions.create(model=model, messages=messages, tools=tools, tool_choice="none", temperature=0,
                                        max_tokens=64)
print(second.choices[0].message.content)
