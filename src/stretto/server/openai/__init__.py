"""The wire formats of OpenAI: chat, completions, responses, embeddings, models, and small relatives."""
