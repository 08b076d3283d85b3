"""Answers that follow a JSON schema, from the Python SDK: the grammar is enforced, token by token.

python examples/structured_output.py
"""

import json

from stretto import LLM

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Italy", "Spain"]},
        "population_millions": {"type": "integer", "minimum": 0, "maximum": 50},
    },
    "required": ["city", "country", "population_millions"],
    "additionalProperties": False,
}

with LLM(n_seq_max=4) as llm:
    cities = ("Paris", "Rome", "Madrid", "Lyon")
    chats = [[{"role": "user", "content": f"Describe {city} as JSON."}] for city in cities]
    for answer in [llm.chat(chat, json_schema=SCHEMA, max_tokens=80, temperature=0) for chat in chats]:
        print(json.dumps(json.loads(answer.text)))
