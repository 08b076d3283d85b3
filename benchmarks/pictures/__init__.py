"""Parts of media.py: pictures with known answers, the client, and what is measured with them."""
