"""Pictures and sounds as callers send them: what they are, how large, and how they are decoded."""
