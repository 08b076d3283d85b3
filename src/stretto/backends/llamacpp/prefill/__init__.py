"""Long prompts in a context of their own, and passes that pause between layers."""
