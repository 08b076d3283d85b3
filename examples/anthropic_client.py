"""Chat with a running server through Anthropic's own client.

stretto serve                      # in another terminal
pip install anthropic
python examples/anthropic_client.py
"""

import os

from anthropic import Anthropic

client = Anthropic(
    base_url=os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:8000"),
    api_key=os.environ.get("ANTHROPIC_API_KEY", "none"),
)
model = client.models.list().data[0].id
with client.messages.stream(
    model=model, max_tokens=64, messages=[{"role": "user", "content": "Say hello in French."}]
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()
