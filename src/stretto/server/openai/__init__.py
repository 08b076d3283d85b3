"""OpenAI's wire formats: chat, completions, responses, embeddings, models, and related routes."""
