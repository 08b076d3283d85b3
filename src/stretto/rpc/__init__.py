"""The protocol between client and worker: messages, frames, connections. Depends only on errors."""
