"""A reply that is JSON of a given shape, whatever the model would have liked to say."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("REPRISE_URL", "http://127.0.0.1:8080") + "/v1", api_key="none")
model = client.models.list().data[0].id
schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "length_km": {"type": "integer"},
        "continent": {"enum": ["Africa", "America", "Asia", "Australia", "Europe"]},
    },
    "required": ["name", "length_km", "continent"],
    "additionalProperties": False,
}
reply = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "Describe the river Nile as JSON."}], max_tokens=128, temperature=0,
    response_format={"type": "json_schema", "json_schema": {"name": "river", "schema": schema, "strict": True}})
river = json.loads(reply.choices[0].message.content)
print(f"{river['name']}: {river['length_km']} km, {river['continent']}")
